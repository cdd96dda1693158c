use super::files::COLUMNS;
use super::*;

pub(crate) fn sample_run(path: &Path) -> Run {
    let mut histogram = Histogram::<u64>::new(3).expect("three digits");
    for value in 1..=10_000 {
        histogram.record(value).expect("in range");
    }
    let mut result = RunResult {
        schema: SCHEMA,
        scenario: "withdraw".into(),
        title: "withdraw RSA-2048".into(),
        command: "batzen-lab bench withdraw --rsa 2048".into(),
        parameters: BTreeMap::from([("rsa_bits".into(), 2048.into()), ("cipher".into(), "RSA".into())]),
        machine: Machine { model: "Zen 5".into(), cores: 2, ..Machine::default() },
        server_cores: vec![0],
        client_cores: vec![1],
        version: "0.1.0".into(),
        commit: "unknown".into(),
        started: utc(1_763_728_365),
        duration_s: 10.0,
        load: Load::Open { clients: 64, target_ops_per_s: 9_000.5 },
        unit: "coins".into(),
        ops: 90_000,
        ops_per_s: 9_000.0,
        requests: 11_250,
        errors: BTreeMap::from([("409".into(), 2)]),
        limited_by: LimitedBy::Server,
        latency: Some(Latency::of(&histogram)),
        bytes_per_op: Some(BytesPerOp { disk: 512.0, ram: 96.5 }),
        cpu_us_per_op: Some(108.0),
        cpu_us_per_op_by_stage: BTreeMap::from([("cpu".into(), 92.0), ("http".into(), 16.0)]),
        client_cpu_us_per_op: Some(30.0),
        batch_sizes: BTreeMap::from([(
            "commit".into(),
            BatchSizes {
                batches: 30,
                mean: 12.5,
                buckets: vec![
                    BatchBucket { up_to: Some(8), batches: 10 },
                    BatchBucket { up_to: None, batches: 20 },
                ],
            },
        )]),
        kinds: BTreeMap::from([(
            "withdraw".into(),
            KindResult { ops: 1, ops_per_s: 0.1, latency: Latency::default() },
        )]),
        extra: BTreeMap::from([("prepared_secrets".into(), 1.0)]),
        remarks: vec!["The clocks were noisy.".into()],
        ..RunResult::default()
    };
    result.set_ceiling(12_000.0, vec![CeilingPart { name: "rsa sign".into(), per_op: 1.0, us: 83.3 }]);
    let sample = |t_s: f64| Sample {
        t_s,
        ops_per_s: 9_000.0 + t_s,
        p50_us: Some(900.0),
        p99_us: None,
        batch_size: Some(12.125),
        server_cores_busy: Some(0.99),
        client_cores_busy: None,
        queue_depth: Some(3.0),
        server_stolen_share: Some(0.02),
    };
    let series = vec![sample(1.0), sample(2.0)];
    Run { path: path.to_owned(), result, series, latency: percentile_points(&histogram) }
}

#[test]
fn a_run_comes_back_as_it_was_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run = sample_run(&directory.path().join("deep/run"));
    run.write().expect("written");
    let read = Run::read(&run.path).expect("read");
    assert_eq!(read.result, run.result);
    assert_eq!(read.series, run.series);
    assert_eq!(read.latency.len(), run.latency.len());
    for (read, written) in read.latency.iter().zip(&run.latency) {
        assert!((read.quantile - written.quantile).abs() < 1e-11);
        assert_eq!((read.value_us, read.count), (written.value_us, written.count));
    }
    assert_eq!(read.result.efficiency, Some(0.75));
}

#[test]
fn a_series_of_an_earlier_version_is_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut run = sample_run(directory.path());
    run.write().expect("written");
    let text = std::fs::read_to_string(directory.path().join(SERIES_FILE)).expect("read");
    let older: String =
        text.lines().map(|line| format!("{}\n", line.rsplit_once(',').expect("columns").0)).collect();
    std::fs::write(directory.path().join(SERIES_FILE), older).expect("written");
    run.series.iter_mut().for_each(|sample| sample.server_stolen_share = None);
    assert_eq!(Run::read(directory.path()).expect("read").series, run.series);
}

#[test]
fn fields_that_other_tools_read_are_at_the_top() {
    let run = sample_run(Path::new("unused"));
    let json: serde_json::Value = serde_json::from_str(&run.result.to_json()).expect("JSON");
    for field in
        ["ops_per_s", "efficiency", "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "cpu_us_per_op"]
    {
        assert!(json[field].is_number(), "{field} in {json}");
    }
    assert_eq!(json["bytes_per_op"], serde_json::json!({"disk": 512.0, "ram": 96.5}));
    assert_eq!(json["limited_by"], "server");
    assert_eq!(json["load"]["kind"], "open");
}

#[test]
fn a_run_without_requests_has_no_latency() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut run = sample_run(directory.path());
    run.result.latency = None;
    (run.series, run.latency) = (Vec::new(), Vec::new());
    run.write().expect("written");
    assert!(!directory.path().join(SERIES_FILE).exists());
    assert_eq!(Run::read(directory.path()).expect("read"), run);
}

#[test]
fn percentiles_end_with_all_requests() {
    let points = sample_run(Path::new("unused")).latency;
    let last = points.last().expect("points");
    assert_eq!((last.quantile, last.count), (1.0, 10_000));
    assert!(points.is_sorted_by(|a, b| a.quantile <= b.quantile && a.value_us <= b.value_us));
}

#[test]
fn missing_and_broken_files_are_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path();
    let error = |path: &Path| Run::read(path).expect_err("nothing to read").to_string();
    assert!(error(path).ends_with("there is no result.json here, so it is no result of `batzen-lab bench`"));
    assert!(error(&path.join("absent")).contains("No such file"));

    std::fs::write(path.join(RESULT_FILE), "{\n \"schema\": 1,").expect("written");
    let message = error(path);
    assert!(message.contains("result.json: damaged") && message.contains("measure again"), "{message}");
    assert!(message.contains("EOF while parsing") && message.contains("line 2"), "{message}");
    std::fs::write(path.join(RESULT_FILE), "{\"schema\": 1}").expect("written");
    assert!(error(path).contains("missing field `scenario`"), "{}", error(path));
    std::fs::write(path.join(RESULT_FILE), "{\"schema\": 99}").expect("written");
    assert!(error(path).contains("schema 99 is unknown; this program reads schema 1"), "{}", error(path));

    let run = sample_run(path);
    run.write().expect("written");
    for (file, text, expected) in [
        (SERIES_FILE, "a,b\n", "series.csv:1: the columns must be t_s,"),
        (SERIES_FILE, &format!("{}\n1,2,3\n", COLUMNS.join(",")), "series.csv:2: 3 cells instead of 9"),
        (
            SERIES_FILE,
            &format!("{}\n1,many,,,,,,,\n", COLUMNS.join(",")),
            "ops_per_s is not a number: \"many\"",
        ),
        (SERIES_FILE, &format!("{}\n1,NaN,,,,,,,\n", COLUMNS.join(",")), "ops_per_s is not a number"),
        (SERIES_FILE, &format!("{}\n1,,,,,,,,\n", COLUMNS.join(",")), "t_s and ops_per_s must be there"),
        (SERIES_FILE, "", "series.csv:1: the columns must be t_s,"),
        (LATENCY_FILE, "", "latency.hgrm:1: not a latency distribution"),
        (LATENCY_FILE, "zzz\n", "latency.hgrm:1: not a latency distribution"),
        (LATENCY_FILE, "Value\n\n 1.0 0.5 3 2.00\nzzz\n", "latency.hgrm:4: not a value, a percentile and"),
        (LATENCY_FILE, "Value\n\n 1.0 0.5 3 zzz\n", "latency.hgrm:3: not a value, a percentile and"),
        (LATENCY_FILE, "Value\n\n NaN 0.5 3 2.00\n", "latency.hgrm:3: not a value, a percentile and"),
        (LATENCY_FILE, "Value\n\n 1.0 7.0 3\n", "latency.hgrm:3: not a value, a percentile and a count"),
    ] {
        run.write().expect("written");
        std::fs::write(path.join(file), text).expect("written");
        assert!(error(path).contains(expected), "{expected}: {}", error(path));
    }
}

#[test]
fn files_that_were_recorded_and_are_gone_are_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let whole = sample_run(directory.path());
    for file in [LATENCY_FILE, SERIES_FILE] {
        whole.write().expect("written");
        let missing = || Run::read(directory.path()).expect("read").missing_files();
        assert!(missing().is_empty());
        std::fs::remove_file(directory.path().join(file)).expect("removed");
        assert_eq!(missing(), [file]);
    }
    let mut run = whole.clone();
    (run.series, run.latency) = (Vec::new(), Vec::new());
    assert_eq!(run.missing_files(), [LATENCY_FILE, SERIES_FILE]);
    run.result.latency = None;
    assert_eq!(run.missing_files(), [SERIES_FILE], "no requests");
    for scenario in WITHOUT_SERIES {
        run.result.scenario = scenario.into();
        assert!(run.missing_files().is_empty(), "no series");
    }
    let mut run = whole.clone();
    run.series.clear();
    run.result.duration_s = 0.5;
    assert!(run.missing_files().is_empty(), "shorter than a sample");
}

#[test]
fn dates_are_those_of_the_calendar() {
    assert_eq!(utc(0), "1970-01-01T00:00:00Z");
    assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
    assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
    assert_eq!(utc(1_763_728_365), "2025-11-21T12:32:45Z");
    assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
}
