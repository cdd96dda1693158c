//! Kept experiments: packed, opened, compared, looked at in a browser, and read by correlation id; and what a full disk
//! leaves of one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use batzen_http::client::{Client, ClientOptions};
use batzen_testkit::browser::Browser;
use batzen_testkit::process::{lab, stderr, stdout};
use serde_json::Value;

use crate::commands::{read_json, until};
use crate::experiment::{Experiment, on, one_machine};

/// Runs a command of the laboratory that must succeed; returns its output.
#[track_caller]
fn must(words: &[&dyn AsRef<std::ffi::OsStr>]) -> String {
    let output = lab().args(words.iter().map(AsRef::as_ref)).output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let below = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => files(&entry.path()),
        false => vec![entry.path()],
    };
    std::fs::read_dir(dir).unwrap().flat_map(|entry| below(entry.unwrap())).collect()
}

/// Runs an experiment until something was paid, and takes it down.
fn kept() -> Experiment {
    let topology = one_machine("").replacen("rsa_bits", "log = 'INFO'\nrsa_bits", 1);
    let topology = topology + "[[role]]\nrole = 'prometheus'\nhosts = ['here']\n";
    let experiment = Experiment::up_in(tempfile::tempdir().unwrap(), &topology);
    let ramp = ["load", "ramp", "--from", "4", "--factor", "2", "--steps", "2", "--step-s", "2"];
    experiment.must(&[&ramp[..], &["--wallets", "8", "--mix", "pay=8,refund=1,send=1"]].concat());
    let early = lab().arg("pack").arg(experiment.path()).output().unwrap();
    assert!(stderr(&early).contains("it still runs"), "{}", stderr(&early));
    experiment.must(&["check"]);
    experiment
}

/// Opens a page from a file, and checks what every reader needs.
fn look_at(browser: &Browser, page: &Path, name: &str, plots: f64) {
    browser.resize(1280, 900, false);
    browser.open(&format!("file://{}", page.display()));
    let drawn = "[...document.querySelectorAll('svg')].filter((plot) => { const box = plot.getBoundingClientRect(); \
                 return box.width > 200 && box.height > 50 && plot.querySelector('path'); }).length";
    assert!(browser.number(drawn) >= plots, "{name}: {} plots", browser.number(drawn));
    assert!(browser.number("document.querySelectorAll('table tbody tr').length") >= 3.0, "{name}");
    // A page in a file has no server, so nothing may come from elsewhere.
    let fetched = "performance.getEntriesByType('resource').length + document.querySelectorAll('[src], link[href]').length";
    assert_eq!(browser.number(fetched), 0.0, "{name}");
    browser.audit(name);
    let said = browser.console();
    assert!(said.is_empty(), "{name}: the console says {said:?}");
}

#[test]
fn what_was_kept_is_sent_opened_compared_and_read() {
    let experiment = kept();
    follow_an_id(&experiment);
    shows_its_hosts(&experiment);
    experiment.must(&["down"]);
    follow_an_id(&experiment);
    let dir = experiment.dir.path();
    let packed = dir.join("sent.tar.gz");
    must(&[&"pack", &experiment.path(), &packed]);
    let again = lab().arg("pack").arg(experiment.path()).arg(&packed).output().unwrap();
    assert!(stderr(&again).contains("is there already"), "{}", stderr(&again));
    holds_no_secret(&experiment, &packed);

    must(&[&"open", &experiment.path()]);
    sums_up_its_load(&experiment.path());
    let opened = must(&[&"open", &packed]);
    let page = dir.join("sent.html");
    assert_eq!(opened.trim(), page.display().to_string());
    let html = std::fs::read_to_string(&page).unwrap();
    for expected in ["Money conserved: yes", "Operations a second", "Latency by load", "What happened"] {
        assert!(html.contains(expected), "{expected}");
    }
    let comparison = dir.join("comparison.html");
    let printed = must(&[&"compare", &experiment.path(), &packed, &"--json", &"--out", &comparison]);
    let compared: Value = serde_json::from_str(&printed).unwrap();
    let figures = compared["figures"].as_array().unwrap();
    let names: Vec<&str> = figures.iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    for expected in ["p99_us at 4.00/s", "errors_per_op", "cpu_us_per_op: exchange", "cpu_us_per_op: load"] {
        assert!(names.contains(&expected), "{expected}: {names:?}");
    }
    assert!(figures.iter().all(|figure| figure["verdict"] == "same"), "{compared:#}");
    // Nothing differs but what is not known: the commit of a build that records none.
    let differences = compared["differences"].as_array().unwrap();
    assert!(differences.iter().all(|found| found["name"] == "commit"), "{compared:#}");
    let outcomes = compared["outcomes"].as_array().unwrap();
    let conserved = outcomes.iter().find(|found| found["name"] == "money conserved").unwrap();
    assert_eq!((&conserved["a"], &conserved["b"]), (&"yes".into(), &"yes".into()));

    costs(&experiment, &packed);
    let browser = Browser::start();
    look_at(&browser, &page, "experiment", 5.0);
    look_at(&browser, &comparison, "experiment-comparison", 1.0);
}

/// The figures and the lines by minute are of the same load.
fn sums_up_its_load(dir: &Path) {
    let summary = read_json(dir.join("summary.json"));
    assert_eq!(summary["load"], "8 wallets, rate 8.00", "{summary}");
    let ops = summary["ops"].as_u64().unwrap();
    assert!(ops > 0 && summary["p99_us"].as_u64() >= summary["p50_us"].as_u64(), "{summary}");
    assert_eq!((summary["conserved"].as_bool(), summary["findings"].as_u64()), (Some(true), Some(0)));
    let lines = std::fs::read_to_string(dir.join("by-minute.csv")).unwrap();
    let mut rows = lines.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = rows.next().unwrap();
    assert!(head.contains(&"exchange_cpu_ms") && head.contains(&"load_rss_bytes"), "{head:?}");
    let by_minute: u64 = rows.map(|row| row[2].parse::<u64>().unwrap()).sum();
    assert_eq!(by_minute, ops, "{lines}");
}

/// Checks the cost of an experiment beside itself: nothing more, and as efficient.
fn costs(experiment: &Experiment, packed: &Path) {
    let ramp = read_json(experiment.path().join("ramp.json"));
    let both: [&dyn AsRef<std::ffi::OsStr>; 3] = [&"cost", &experiment.path(), &packed];
    let output = lab().args(both.map(AsRef::as_ref)).arg("--json").output().unwrap();
    let Some(knee) = ramp["knee_ops_per_s"].as_f64() else {
        assert!(stderr(&output).contains("did not keep up with the first step"), "{}", stderr(&output));
        eprintln!("the machine is too busy for the first step of a ramp, so there is no knee with a cost");
        return;
    };
    let costs: Value =
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let rows = costs["rows"].as_array().unwrap();
    assert_eq!(
        (rows.len(), &rows[0]["ops_per_s"], &rows[0]["hosts"]),
        (2, &knee.into(), &1.into()),
        "{costs:#}"
    );
    for counted in ["exchange", "merchant", "auditor"] {
        let role = &rows[0]["roles"][counted];
        assert_eq!(role["instances"], 1, "{counted}: {costs:#}");
        assert!(
            role["memory_bytes"].as_u64() > Some(1_000_000) && role["cores"].is_f64(),
            "{counted}: {costs:#}"
        );
    }
    assert!(rows[0]["roles"]["load"].is_null() && rows[0]["roles"]["bank"].is_null(), "{costs:#}");
    let price = |row: &Value, name: &str| row[name].as_f64().unwrap();
    assert!(
        price(&rows[0], "price_a_month") > 0.0 && price(&rows[0], "price_of_a_million") > 0.0,
        "{costs:#}"
    );
    let more = &rows[1]["increment"];
    assert_eq!(
        (&more["hosts"], &more["price_a_month"], &more["ops_per_s"]),
        (&0.into(), &0.0.into(), &0.0.into())
    );
    assert_eq!((&rows[0]["increment"], &rows[1]["efficiency"]), (&Value::Null, &1.0.into()));
    let prices = experiment.dir.path().join("prices.toml");
    std::fs::write(&prices, "core_hour = 0.1\nmemory_gb_month = 8\ndisk_gb_month = 0.2\n").unwrap();
    let twice = must(&[&both[0], &both[1], &"--prices", &prices, &"--json"]);
    let twice: Value = serde_json::from_str(&twice).unwrap();
    let ratio = price(&twice["rows"][0], "price_a_month") / price(&rows[0], "price_a_month");
    assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
    let table = must(&both);
    assert!(table.contains("| experiment | 1 exchange") && table.contains("| sent.tar.gz |"), "{table}");
    let whole = lab().arg("cost").arg(experiment.path()).arg("--whole-hosts").output().unwrap();
    assert!(stderr(&whole).contains("here is no machine of its own"), "{}", stderr(&whole));
}

/// The queries of a dashboard, with variables replaced, and the numbers of rows that the experiment's Prometheus answers.
pub(crate) fn asked(experiment: &Experiment, dashboard: &str) -> Vec<(String, usize)> {
    let base = format!("http://127.0.0.1:{}/api/v1/query", experiment.port("prometheus"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async { Client::new(&ClientOptions::default()).unwrap() });
    let dashboard = read_json(Path::new("../../deploy/grafana").join(dashboard));
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let ask = |target: &Value| {
        let text = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
        let text = text.replace("$instance", ".*").replace("$server", ".*");
        let reply = runtime.block_on(client.get(&base).query("query", &text).send()).unwrap();
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(answer["status"], "success", "{text}: {answer}");
        (text, answer["data"]["result"].as_array().unwrap().len())
    };
    targets.map(ask).collect()
}

/// Checks that Prometheus has what the dashboard of hosts asks for.
fn shows_its_hosts(experiment: &Experiment) {
    let asked = asked(experiment, "hosts.json");
    assert!(asked.len() >= 9, "{asked:?}");
    for (query, rows) in asked {
        // One host has no other, and not every disk tells what is written.
        let may_be_empty = query.contains("round_trip") || query.contains("disk_written");
        assert!(may_be_empty || rows > 0, "the query has no result: {query}");
    }
}

/// Checks that the lines of one request are found by its id, while the experiment runs and afterwards.
fn follow_an_id(experiment: &Experiment) {
    let all = experiment.must(&["logs", "--instance", "merchant", "--json"]);
    let lines = all.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let paid =
        lines.filter_map(|line| Some(line["line"].as_str()?.to_owned())).find(|line| line.contains("/pay"));
    let paid = paid.unwrap_or_else(|| panic!("no payment is logged: {all}"));
    let id = paid.split("id=\"").nth(1).and_then(|rest| rest.split('"').next());
    let id = id.unwrap_or_else(|| panic!("no id in {paid}"));
    let of_id = experiment.must(&["logs", id]);
    // The order was made with the id of the same operation.
    for path in ["/private/orders", "/pay"] {
        assert!(of_id.lines().any(|line| line.contains(path)), "{path}: {of_id}");
    }
    assert!(of_id.lines().all(|line| line.contains(id)), "{of_id}");
    let none = on(&experiment.path(), &["logs", "no-such-id"]);
    assert!(!none.status.success() && stderr(&none).contains("no line has this id"), "{}", stderr(&none));
}

fn holds_no_secret(experiment: &Experiment, packed: &Path) {
    let dir = experiment.dir.path().join("unpacked");
    std::fs::create_dir(&dir).unwrap();
    let tar = Command::new("tar").arg("-C").arg(&dir).arg("-xzf").arg(packed).status().unwrap();
    assert!(tar.success());
    let state = experiment.state();
    let secrets = ["password", "shop_token"].map(|name| state[name].as_str().unwrap().to_owned());
    let found = files(&dir);
    assert!(found.iter().any(|file| file.ends_with("hosts/here/samples.jsonl")), "{found:?}");
    assert!(found.iter().any(|file| file.ends_with("hosts/here/load/out")), "{found:?}");
    for file in found {
        // Configurations have passwords, and whatever else is there is data or keys of services.
        let name = file.file_name().unwrap().to_str().unwrap();
        let is_result = file.parent() == Some(&dir.join("sent"))
            && ["json", "jsonl", "toml", "html"]
                .iter()
                .any(|end| file.extension().is_some_and(|of| of == *end));
        let is_of_host = ["out", "log", "samples.jsonl", "agent.log"].contains(&name)
            || file.starts_with(dir.join("sent/hosts/here/prometheus/data"));
        assert!(is_result || is_of_host, "{}", file.display());
        let bytes = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        for secret in &secrets {
            assert!(!text.contains(secret), "{} has a secret", file.display());
        }
    }
}

/// A small disk of memory, which is removed when the test ends.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// None where this user may not mount one.
    fn mount(path: &Path, size_mib: u32) -> Option<Self> {
        std::fs::create_dir(path).unwrap();
        let options = format!("size={size_mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("no tmpfs can be mounted here: only root may");
            return None;
        }
        Some(Self { path: path.to_owned() })
    }

    /// Writes until nothing more fits, again and again, since services may remove what they no longer need.
    fn fill(&self) -> Ballast {
        let (path, is_over) = (self.path.join("ballast"), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut ballast = std::fs::File::create(path).unwrap();
            while !ended.load(Ordering::Relaxed) {
                while ballast.write_all(&[1; 1 << 12]).is_ok() {}
                while ballast.write_all(&[1]).is_ok() {}
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Ballast { is_over, thread: Some(thread) }
    }
}

/// The thread that keeps a disk full until this is dropped.
struct Ballast {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Ballast {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // What it wrote stays.
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The directory above is removed next, which a test sees if this fails.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

#[test]
fn a_full_disk_ends_no_experiment_and_leaves_what_there_is() {
    let (outside, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(disk) = SmallDisk::mount(&dir.path().join("experiment"), 512) else { return };
    let experiment = Experiment::up_in(dir, &one_machine(""));
    experiment.must(&["load", "start", "--wallets", "3"]);
    experiment.wait_for_payments(5);
    let ballast = disk.fill();

    // The agent says so, and goes on.
    until(100, || {
        let status = experiment.status();
        let rows = status["processes"].as_array().unwrap();
        let mut errors = rows.iter().filter_map(|row| row["error"].as_str());
        if !errors.any(|error| error.contains("samples are lost")) {
            return Err(status.to_string());
        }
        assert_eq!(status["well"], false);
        assert!(rows.iter().any(|row| row["instance"] == "load"), "{status}");
        Ok(())
    });
    // So does the controller.
    let changed = on(&experiment.path(), &["load", "rate", "3"]);
    assert!(changed.status.success(), "{}", stderr(&changed));
    assert!(stderr(&changed).contains("the disk is full"), "{}", stderr(&changed));
    // Some lines fit into the last page of the generator's file.
    let shown = on(&experiment.path(), &["load", "show", "--seconds", "120"]);
    assert!(stderr(&shown).contains("is silent"), "{}{}", stdout(&shown), stderr(&shown));

    drop(ballast);
    experiment.must(&["down"]);
    assert_eq!(experiment.state()["is_up"], false);
    let page = outside.path().join("page.html");
    must(&[&"open", &experiment.path(), &"--out", &page]);
    let html = std::fs::read_to_string(&page).unwrap();
    for expected in ["Operations a second", "Processor time, cores", "<td>down</td>"] {
        assert!(html.contains(expected), "{expected}");
    }
    drop(disk);
}
