use super::*;
use crate::bench::results::result::tests::sample_run;

/// Two runs of one scenario, one of another.
fn runs() -> Vec<Run> {
    let first = sample_run(Path::new("results/first"));
    let mut second = sample_run(Path::new("results/second"));
    second.result.ops_per_s = 11_800.0;
    second.result.set_ceiling(12_000.0, second.result.ceiling_parts.clone());
    let mut third = sample_run(Path::new("results/third"));
    third.result.scenario = "deposit".into();
    third.result.title = "deposit <RSA> & \"friends\"".into();
    third.result.latency = None;
    third.result.bytes_per_op = None;
    (third.series, third.latency) = (Vec::new(), Vec::new());
    vec![first, second, third]
}

/// Checks that every opened element is closed, in order. This parses only as much HTML as we write.
fn assert_well_formed(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "before {}", &rest[..rest.len().min(80)]);
        } else if !tag.ends_with('/') && !tag.starts_with('!') && !["meta", "br"].contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

#[test]
fn the_page_is_whole_and_needs_no_network() {
    let html = html("Figures <1>", &runs(), None);
    assert_well_formed(&html);
    assert!(html.contains("<title>Figures &lt;1&gt;</title>"));
    assert!(html.contains("default-src 'none'"), "whatever slips in, nothing is fetched");
    for forbidden in ["<script", "<link", "<img", "src=\"", "href=\"", "url(", "@import"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert!(!html.contains("://"), "no address at all");
}

#[test]
fn the_figures_are_those_of_the_runs() {
    let html = html("Batzen, measured", &runs(), None);
    for text in [
        // Summary.
        "<td>9,000 coins</td><td>0.75</td><td>5.00</td><td>9.01</td><td>9.90</td>",
        "<td>11,800 coins</td><td>0.98</td>",
        "<td>108</td><td>512</td><td>96.5</td><td>server</td><td>2</td>",
        "<td>open, 9,000/s</td>",
        // A run without latency.
        "<td>0.75</td><td>–</td><td>–</td><td>–</td><td>–</td><td>–</td><td>108</td><td>–</td><td>–</td>",
        // Runs with equal titles are told apart; hostile titles are escaped.
        "withdraw RSA-2048 (first)",
        "withdraw RSA-2048 (second)",
        "deposit &lt;RSA&gt; &amp; &quot;friends&quot;",
        // Plots.
        "0.75 of 12,000/s",
        "<title>cpu: 92.0 µs</title>",
        "Batches by size: commit (mean 12.5, 12.5)",
        "<title>withdraw RSA-2048 (first): 33.3%</title>",
        ">99.9%</text>",
        // Parameters, remarks and errors.
        "<th scope=\"row\">rsa_bits</th><td>2048</td><td>2048</td>",
        "<th scope=\"row\">ceiling: rsa sign</th><td>1.00 × 83.3 µs</td>",
        "The clocks were noisy.",
        "2 requests failed: 409",
        "batzen-lab bench withdraw --rsa 2048",
        "Zen 5, 2 cores (no extensions)",
    ] {
        assert!(html.contains(text), "{text}");
    }
    assert!(!html.contains("different machines"));
    // Two groups; the second has no plots over time.
    assert_eq!(html.matches("<h2>").count(), 3);
    assert_eq!(html.matches("Throughput: coins per second").count(), 1);
}

#[test]
fn different_machines_are_pointed_out() {
    let mut runs = runs();
    runs[1].result.machine.model = "another".into();
    assert!(html("", &runs, None).contains("different machines or builds"));
}

#[test]
fn nines_grow_with_the_percentile() {
    let point = |quantile: f64| nines(&PercentilePoint { value_us: 1.0, quantile, count: 1_000 });
    assert!(point(0.0).abs() < 1e-9 && (point(0.9) - 1.0).abs() < 1e-9);
    assert!((point(1.0) - 3.0).abs() < 1e-9 && (point(0.999_999) - 3.0).abs() < 1e-9);
}

#[test]
fn the_command_writes_a_file_or_says_why_not() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run_directory = directory.path().join("run");
    sample_run(&run_directory).write().expect("written");
    let output = directory.path().join("report.html");
    let args =
        |directories: Vec<PathBuf>| ReportArgs { directories, output: output.clone(), title: "T".into() };
    assert_eq!(run(&args(vec![run_directory])).expect("written"), ExitCode::SUCCESS);
    assert_well_formed(&std::fs::read_to_string(&output).expect("there"));
    let error = run(&args(vec![directory.path().join("absent")])).expect_err("absent").to_string();
    assert!(error.contains("absent"), "{error}");
    let args = ReportArgs {
        output: directory.path().join("no/such/place.html"),
        ..args(vec![directory.path().join("run")])
    };
    assert!(run(&args).expect_err("no directory").to_string().contains("place.html"));
}

#[test]
fn the_committed_results_have_a_report() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("report.html");
    let args = ReportArgs { directories: vec![kept.clone()], output: output.clone(), title: "T".into() };
    run(&args).expect("written");
    let html = std::fs::read_to_string(&output).expect("there");
    assert_well_formed(&html);
    assert!(html.contains("What one core can do"));
    let runs = Results::read(&[kept]).expect("read").runs;
    let lack = |run: &Run| format!("{}: not in its directory", escape_html(&name(run, &runs)));
    for run in &runs {
        assert!(html.contains(&*escape_html(&run.result.title)), "{}", run.path.display());
        assert_eq!(html.contains(&lack(run)), !run.missing_files().is_empty(), "{}", run.path.display());
    }
    assert!(runs.iter().any(|run| run.missing_files() == ["latency.hgrm", "series.csv"]));
    assert!(runs.iter().any(|run| run.missing_files().is_empty() && !run.latency.is_empty()));
}

#[test]
fn the_ceilings_of_the_machine_are_shown_with_the_runs() {
    let speed = |us: f64| crate::bench::scenarios::limits::Speed { us, per_s: 1e6 / us };
    let limits = Limits {
        schema: crate::bench::scenarios::limits::SCHEMA,
        machine: crate::bench::results::machine::Machine::default(),
        core: 3,
        version: "1.2.3".into(),
        commit: "abc<d".into(),
        started: String::new(),
        limits: vec![crate::bench::scenarios::limits::Limit {
            group: "RSA-2048".into(),
            name: "RSA-2048 blind sign".into(),
            library: speed(250.0),
            lanes: Some(speed(80.0)),
            ratio: Some(3.125),
        }],
        http: crate::bench::scenarios::limits::HttpLimit {
            per_s: 1.0,
            cpu_us_per_request: 1.0,
            requests: 1,
            request_bytes: 1,
            response_bytes: 1,
            connections: 1,
        },
        store: Vec::new(),
        sync: Vec::new(),
        derived: vec![crate::bench::scenarios::limits::Derived {
            operation: "withdraw RSA-2048".into(),
            per_request: 1.0,
            cryptography_library_per_s: 3_800.0,
            cryptography_lanes_per_s: None,
            whole_per_s: 3_500.0,
        }],
        remarks: Vec::new(),
    };
    let html = html("", &runs(), Some(&limits));
    assert_well_formed(&html);
    assert!(html.contains("in the same run on core 3, Batzen 1.2.3, commit abc&lt;d;"));
    assert!(html.contains(">RSA-2048 blind sign</th><td>4,000</td><td>12,500</td><td>3.12</td>"));
    assert!(html.contains(">withdraw RSA-2048</th><td>3,800</td><td>–</td><td>3,500</td>"));
}
