//! The report in a real browser: its contents, and that it fits a phone screen.
//!
//! Without Chromium (`chromium`, `chromium-browser`, `google-chrome`, or the program in `BATZEN_CHROMIUM`)
//! these tests print a note and pass. If `BATZEN_CHROMIUM` names a missing program, they fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use batzen_lab::bench::results::machine::Machine;
use batzen_lab::bench::results::report;
use batzen_lab::bench::results::result::{
    BatchBucket, BatchSizes, BytesPerOp, CeilingPart, Latency, LimitedBy, Load, PercentilePoint, Run,
    RunResult, SCHEMA, Sample,
};

fn chromium() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("BATZEN_CHROMIUM") {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .flat_map(|directory| {
            ["chromium", "chromium-browser", "google-chrome"].map(|name| directory.join(name))
        })
        .find(|program| program.is_file());
    if found.is_none() {
        eprintln!("no Chromium here: the report is not looked at");
    }
    found
}

/// Opens a page in a window of this size; with the given switches the browser prints or renders, then exits.
fn open(browser: &Path, page: &Path, width: u32, switches: &[String]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-dev-shm-usage", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},2400"))
        .args(switches)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn run(scenario: &str, title: &str, ops_per_s: f64) -> Run {
    let mut result = RunResult {
        schema: SCHEMA,
        scenario: scenario.into(),
        title: title.into(),
        command: format!("batzen-lab bench {scenario} --rsa 2048 --clients 64 --duration 20"),
        parameters: BTreeMap::from([("cipher".into(), "RSA-2048".into()), ("clients".into(), 64.into())]),
        machine: Machine {
            model: "A processor with a name".into(),
            cores: 2,
            flags: vec!["avx512f".into(), "avx512ifma".into()],
            kernel: "Linux 6.1.0".into(),
            memory_bytes: 24 << 30,
        },
        server_cores: vec![0],
        client_cores: vec![1],
        version: "0.1.0".into(),
        commit: "unknown".into(),
        started: "2026-11-21T12:32:45Z".into(),
        duration_s: 20.0,
        load: Load::Closed { clients: 64 },
        unit: "coins".into(),
        ops: 200_000,
        ops_per_s,
        requests: 200_000,
        limited_by: LimitedBy::Server,
        latency: Some(Latency {
            p50_us: 4_000,
            p90_us: 7_000,
            p99_us: 12_000,
            p999_us: 20_000,
            max_us: 40_000,
        }),
        bytes_per_op: Some(BytesPerOp { disk: 512.0, ram: 96.0 }),
        cpu_us_per_op: Some(100.0),
        cpu_us_per_op_by_stage: BTreeMap::from([("cpu".into(), 80.0), ("http".into(), 20.0)]),
        client_cpu_us_per_op: Some(30.0),
        batch_sizes: BTreeMap::from([(
            "commit".into(),
            BatchSizes {
                batches: 30,
                mean: 20.0,
                buckets: vec![
                    BatchBucket { up_to: Some(16), batches: 10 },
                    BatchBucket { up_to: Some(32), batches: 20 },
                ],
            },
        )]),
        ..RunResult::default()
    };
    let part = CeilingPart { name: "RSA-2048 blind sign".into(), per_op: 1.0, us: 80.0 };
    result.set_ceiling(12_500.0, vec![part]);
    let series = (1..=20)
        .map(|second| Sample {
            t_s: f64::from(second),
            ops_per_s,
            p50_us: Some(4_000.0),
            p99_us: Some(12_000.0),
            ..Sample::default()
        })
        .collect();
    let latency =
        [(1_000.0, 0.0, 1), (4_000.0, 0.5, 100_000), (12_000.0, 0.99, 198_000), (40_000.0, 1.0, 200_000)]
            .map(|(value_us, quantile, count)| PercentilePoint { value_us, quantile, count });
    Run { path: scenario.into(), result, series, latency: latency.to_vec() }
}

fn page() -> String {
    report::html(
        "Figures",
        &[
            run("withdraw", "withdraw RSA-2048, one coin a request", 10_000.0),
            run("deposit", "deposit RSA-2048, one coin a request, merchants by Zipf's law", 20_000.0),
        ],
        None,
    )
}

#[test]
fn a_browser_shows_the_figures_and_draws_the_plots() {
    let Some(browser) = chromium() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.html");
    std::fs::write(&file, page()).unwrap();
    let dom = open(&browser, &file, 1200, &["--dump-dom".to_owned()]);
    for text in ["10,000 coins", "20,000 coins", "0.80 of 12,500/s", "A processor with a name", "99.9%"] {
        assert!(dom.contains(text), "{text}");
    }
    let picture = directory.path().join("report.png");
    open(&browser, &file, 1200, &[format!("--screenshot={}", picture.display())]);
    let png = std::fs::read(&picture).unwrap();
    assert!(
        png.starts_with(b"\x89PNG") && png.len() > 30_000,
        "{} bytes: too little for tables and plots",
        png.len()
    );
}

#[test]
fn the_report_fits_its_window() {
    let Some(browser) = chromium() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.html");
    // The page allows no scripts, so the measuring script is added by the test.
    let measuring = "<script>addEventListener('load', () => {\
                     const plots = [...document.querySelectorAll('svg')].map(plot => plot.getBoundingClientRect());\
                     document.documentElement.setAttribute('measured', [innerWidth, document.documentElement.scrollWidth, \
                     plots.length, plots.filter(plot => plot.width < 200 || plot.height < 10).length].join(' '));});\
                     </script></head>";
    let html = page();
    let (before, after) = html.split_once("<meta http-equiv").unwrap();
    let (_, after) = after.split_once('>').unwrap();
    std::fs::write(&file, format!("{before}{after}").replacen("</head>", measuring, 1)).unwrap();
    for width in [500, 1200] {
        let dom = open(&browser, &file, width, &["--dump-dom".to_owned()]);
        let measured = dom.split("measured=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let numbers: Vec<u32> = measured.split(' ').map(|number| number.parse().unwrap()).collect();
        let [window, content, plots, tiny] = numbers[..] else { panic!("{measured}") };
        assert!(content <= window, "{content} pixels in a window of {window}");
        assert!(plots >= 10 && tiny == 0, "{plots} plots, of which {tiny} cannot be seen");
    }
}
