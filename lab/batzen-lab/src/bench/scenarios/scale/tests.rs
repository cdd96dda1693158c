use super::*;

/// Runs of a server that takes 100 µs for a coin on one core, and `growth` times as much on two.
fn runs(rounds: &[f64]) -> Vec<ScaleRun> {
    let run = |round: usize, cores: u32, us: f64| ScaleRun {
        round: u32::try_from(round).unwrap() + 1,
        cores,
        is_shared: cores == 2,
        coins_per_s: f64::from(cores) * 0.5e6 / us,
        limited_by: LimitedBy::Server,
        cpu_us_per_coin: us,
        cpu_us_per_coin_by_stage: [("http", 20.0), ("cpu", us - 35.0), ("lane", 14.0), ("store", 1.0)]
            .map(|(stage, us)| (stage.to_owned(), us))
            .into(),
        serial_cpu_us_per_coin: 6.0,
        coins_per_frame: 20.0,
        foreign_share: 0.0,
        stolen_share: 0.0,
    };
    let of_round = |(round, growth): (usize, &f64)| [run(round, 1, 100.0), run(round, 2, 100.0 * growth)];
    rounds.iter().enumerate().flat_map(of_round).collect()
}

fn lanes() -> Vec<LanesRow> {
    let row = |lanes, serial_cpu_us_per_coin| LanesRow {
        coins_per_payment: 10,
        lanes,
        coins_per_s: 100_000.0,
        ratio: 1.0,
        lane_cpu_us_per_coin: 10.0,
        serial_cpu_us_per_coin,
        batches_per_frame: 1.0,
        waiting_share: 0.0,
        conflicts: 0,
    };
    vec![row(1, 9.0), row(2, 2.5)]
}

#[test]
fn shared_cores_are_compared_by_processor_time() {
    let kind = kind(10, runs(&[1.02, 1.0, 1.05]), lanes()).unwrap();
    assert_eq!((kind.basis, kind.identified, kind.law.kappa), (Basis::Cpu, 2, 0.0));
    assert!((kind.law.one_core_coins_per_s - 10_000.0).abs() < 30.0, "{:?}", kind.law);
    let sigmas: Vec<f64> = kind.round_laws.iter().map(|law| law.sigma).collect();
    for (sigma, expected) in sigmas.iter().zip([0.02, 0.0, 0.05]) {
        assert!((sigma - expected).abs() < 1e-9, "{sigmas:?}");
    }
    assert!((0.0..0.05).contains(&kind.law.sigma));
    // The serial part is that of the most lanes, in full batches.
    assert!((kind.serial_share - 0.025).abs() < 1e-4, "{}", kind.serial_share);
    let commit = kind.ceilings.iter().find(|ceiling| ceiling.stage == COMMIT).unwrap();
    assert_eq!(commit.coins_per_s, 400_000.0);
    let [goal, stages] = &kind.goals[..] else { panic!("{:?}", kind.goals) };
    assert_eq!((goal.coins_per_s, stages.coins_per_s), (100_000.0, 250_000.0));
    assert!(stages.is_reached && stages.ceiling.as_ref().is_some_and(|ceiling| ceiling.stage == COMMIT));
    let [expected, low, high] = goal.cores_needed.map(Option::unwrap);
    assert!(high <= expected && expected <= low, "{goal:?}");
    assert_eq!(goal.is_reached, expected <= GOAL_CORES);
}

#[test]
fn undisturbed_servers_are_compared_by_the_clock() {
    let mut runs = runs(&[1.0]);
    runs.iter_mut().for_each(|run| run.is_shared = false);
    let by_clock = kind(1, runs.clone(), lanes()).unwrap();
    assert_eq!(by_clock.basis, Basis::Clock);
    assert!((by_clock.law.one_core_coins_per_s - 5_000.0).abs() < 1e-6, "they were idle half of the time");
    assert_eq!(by_clock.goals[0].coins_per_s, 60_000.0);
    for disturb in [
        |run: &mut ScaleRun| run.foreign_share = 0.3,
        |run: &mut ScaleRun| run.stolen_share = 0.02,
        |run: &mut ScaleRun| run.limited_by = LimitedBy::Client,
    ] {
        let mut disturbed = runs.clone();
        disturb(&mut disturbed[1]);
        assert_eq!(kind(1, disturbed, lanes()).unwrap().basis, Basis::Cpu);
    }
    runs[0].coins_per_s = 0.0;
    assert!(kind(1, runs, lanes()).is_err(), "nothing was done");
}

#[test]
fn server_grows_by_doubling() {
    assert_eq!(default_cores(1), [1]);
    assert_eq!(default_cores(2), [1, 2]);
    assert_eq!(default_cores(6), [1, 2, 4, 6]);
    assert_eq!(default_cores(16), [1, 2, 4, 8, 16]);
    assert_eq!([1, 4, 8, 64].map(lanes_on), [1, 1, 2, 16]);
    assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![2.0, 1.0]), median(Vec::new())), (2.0, 1.0, 0.0));
}

#[test]
fn text_tells_what_was_projected() {
    let kinds = vec![kind(10, runs(&[1.02, 1.0]), lanes()).unwrap()];
    let result = ScaleResult {
        machine: Machine::default(),
        version: "1".to_owned(),
        commit: "unknown".to_owned(),
        cipher: "RSA-2048".to_owned(),
        rounds: 2,
        clients_per_core: 64,
        remarks: remarks(&kinds),
        kinds,
    };
    let text = text::table(&result);
    for part in [
        "10 coins a request",
        "* the load generator shares the server's cores",
        "κ not determined",
        "2 lanes alone",
        "  of it commits, one at a time",
        "saturates first on 64 cores: commits, one at a time, at 400,000 coins/s",
        "from the serial part",
        "goal 100,000 coins/s on 12 cores: missed",
        "goal no stage below 250,000 coins/s: reached",
        "two numbers of cores do not determine κ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let page = plot::page(&result);
    assert_eq!(page.matches("<svg").count(), 1);
    assert!(page.contains("measured, by processor time") && page.ends_with("</html>\n"), "{page}");
    let read: ScaleResult = serde_json::from_str(&output::json(&result)).unwrap();
    assert_eq!(read, result);
}
