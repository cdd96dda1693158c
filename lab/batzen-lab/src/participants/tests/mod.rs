//! The simulators against a tiny switch.

mod relay;

use std::time::Duration;

use crate::participants::{Behaviour, Fsps, FspsConfig, Load, Mix, Notice, Order, Schedule};
use relay::{Faults, Relay};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn town(count: usize, faults: Faults, change: impl FnOnce(&mut FspsConfig)) -> (Relay, Fsps) {
    let mut relay = Relay::bind(faults);
    let mut config = FspsConfig::new(count, relay.address, "USD");
    config.keeps_outcomes = true;
    config.grace = Duration::from_millis(300);
    change(&mut config);
    let fsps = Fsps::start(config).unwrap();
    let participants: Vec<(String, String)> = fsps
        .names()
        .iter()
        .enumerate()
        .map(|(index, name)| (name.clone(), fsps.callback_url(index)))
        .collect();
    relay.serve(&participants);
    (relay, fsps)
}

fn order(behaviour: Behaviour) -> Order {
    let expiration = match behaviour {
        Behaviour::Silent | Behaviour::Late => Duration::from_millis(300),
        _ => PATIENCE,
    };
    Order { payer: 0, payee: 1, cents: 1_250, behaviour, expiration }
}

const fn closed(count: u64, mix: Mix) -> Load {
    Load {
        schedule: Schedule::Closed { in_flight: 20 },
        warmup: Duration::ZERO,
        duration: None,
        count: Some(count),
        mix,
        cents_max: 10_000,
        expiration: Duration::from_secs(20),
    }
}

/// The loopback address 127.0.0.2 stands for another host: only those who name it reach what listens there.
#[test]
fn participants_are_called_back_at_another_address() {
    let (relay, fsps) = town(2, Faults::default(), |config| {
        config.callback_bind = Some([127, 0, 0, 2].into());
    });
    assert!(fsps.callback_url(1).starts_with("http://127.0.0.2:"), "{}", fsps.callback_url(1));
    let id = fsps.send(order(Behaviour::Accept));
    let outcome = fsps.outcome(id, PATIENCE).expect("outcomes are kept");
    assert_eq!((outcome.payer_notice, relay.committed()), (Some(Notice::Committed), 1));
}

#[test]
fn every_behaviour_ends_as_it_should() {
    let (_relay, fsps) = town(2, Faults::default(), |_| ());
    for (behaviour, payer, payee) in [
        (Behaviour::Accept, Notice::Committed, None),
        (Behaviour::Reserve, Notice::Committed, Some(Notice::Committed)),
        (Behaviour::Reject, Notice::Error(5104), None),
        (Behaviour::Silent, Notice::Error(3303), Some(Notice::Error(3303))),
        (Behaviour::WrongFulfilment, Notice::Error(3100), None),
        (Behaviour::Duplicate, Notice::Committed, None),
        (Behaviour::ChangedDuplicate, Notice::Committed, None),
    ] {
        let id = fsps.send(order(behaviour));
        let outcome = fsps
            .outcome_when(id, PATIENCE, |outcome| {
                outcome.payer_notice.is_some()
                    && (payee.is_none() || outcome.payee_notice.is_some())
                    && (behaviour != Behaviour::ChangedDuplicate || outcome.modified > 0)
            })
            .unwrap();
        assert_eq!(outcome.payer_notice, Some(payer), "{behaviour:?}");
        if payee.is_some() {
            assert_eq!(outcome.payee_notice, payee, "{behaviour:?}");
        }
        assert_eq!(outcome.modified, u32::from(behaviour == Behaviour::ChangedDuplicate), "{behaviour:?}");
        assert!(!outcome.is_contradictory, "{behaviour:?}");
    }
    // The payee is too late, and receives a notice.
    let id = fsps.send(order(Behaviour::Late));
    let outcome = fsps.outcome(id, PATIENCE).unwrap();
    assert_eq!(outcome.payer_notice, Some(Notice::Error(3303)));
    assert_eq!(fsps.outcomes().len(), 8);
}

#[tokio::test]
async fn the_end_of_a_transfer_is_awaited_without_keeping_outcomes() {
    let (_relay, fsps) = town(2, Faults::default(), |config| config.keeps_outcomes = false);
    for (behaviour, notice) in
        [(Behaviour::Accept, Notice::Committed), (Behaviour::Reject, Notice::Error(5104))]
    {
        let told = tokio::time::timeout(PATIENCE, fsps.transfer(order(behaviour))).await;
        assert_eq!(told.expect("the payer is told").unwrap(), notice);
    }
}

#[test]
fn a_load_is_counted_to_the_last_transfer() {
    for threads in [1, 3] {
        let (relay, fsps) = town(8, Faults::default(), |config| config.threads = threads);
        fsps.load(closed(500, Mix::default()));
        while fsps.committed() < 500 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let report = fsps.end_load(PATIENCE);
        assert_eq!((report.begun, report.committed, report.committed_in_all), (500, 500, 500));
        assert_eq!(report.failures(), [].into());
        assert_eq!((report.prepare.len(), report.fulfil.len(), report.whole.len()), (500, 500, 500));
        assert_eq!(report.seconds.iter().map(|second| second.committed).sum::<u64>(), 500);
        assert!(report.whole.max() >= report.fulfil.max());
        assert!(!report.measured.is_zero());
        assert_eq!(relay.committed(), 500);
        assert_eq!(fsps.under_way(), 0);
    }
}

#[test]
fn an_open_loop_keeps_its_rate_and_its_end() {
    let (relay, fsps) = town(4, Faults::default(), |_| ());
    let duration = Duration::from_millis(600);
    let schedule = Schedule::Open { per_s: 500.0, in_flight_max: 10_000 };
    let warmup = Duration::from_millis(200);
    fsps.load(Load { schedule, warmup, duration: Some(duration), count: None, ..closed(0, Mix::default()) });
    std::thread::sleep(warmup + duration);
    let report = fsps.end_load(PATIENCE);
    // The schedule determines how many begin at most, however busy the machine is.
    assert!(report.begun <= 400, "{}", report.begun);
    assert_eq!(report.committed_in_all, report.begun);
    assert!(report.committed <= report.committed_in_all);
    assert_eq!(report.measured, duration);
    assert_eq!(relay.committed() as u64, report.begun);
}

#[test]
fn overload_and_broken_connections_lose_nothing() {
    let faults = Faults { overload_every: 7, cut_every: 11, repeats_callbacks: true, is_mute: false };
    let (relay, fsps) = town(4, faults, |_| ());
    fsps.load(closed(300, Mix::default()));
    while fsps.committed() < 300 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let report = fsps.end_load(PATIENCE);
    assert_eq!((report.committed_in_all, relay.committed()), (300, 300));
    assert!(report.repeats > 0);
    assert!(report.late_callbacks > 0, "repeated callbacks are seen");
    assert!(fsps.outcomes().iter().all(|(_, outcome)| !outcome.is_contradictory));
}

#[test]
fn a_payer_without_callback_queries_the_transfer() {
    let (_relay, fsps) = town(2, Faults { is_mute: true, ..Faults::default() }, |_| ());
    let id = fsps.send(Order { expiration: Duration::from_secs(1), ..order(Behaviour::Accept) });
    let outcome = fsps.outcome(id, PATIENCE).unwrap();
    assert_eq!(outcome.payer_notice, Some(Notice::Committed));
}

#[test]
fn failures_are_reported() {
    let (_relay, fsps) = town(3, Faults::default(), |_| ());
    let mix = Mix::new(&[(Behaviour::Accept, 3), (Behaviour::Reject, 1), (Behaviour::WrongFulfilment, 1)]);
    fsps.load(closed(100, mix));
    let report = loop {
        std::thread::sleep(Duration::from_millis(20));
        let ended = fsps.outcomes().iter().filter(|(_, outcome)| outcome.payer_notice.is_some()).count();
        if ended == 100 {
            break fsps.end_load(PATIENCE);
        }
    };
    assert_eq!(report.failures(), [].into(), "each ended as it should");
    assert_eq!(report.ends.values().sum::<u64>(), 100);
    assert!(report.ends.contains_key(&(Behaviour::Reject, Notice::Error(5104))));
    let mut report = report;
    report.ends.insert((Behaviour::Accept, Notice::Error(4001)), 2);
    report.unresolved = 1;
    assert_eq!(report.failures().values().sum::<u64>(), 3);
}

#[test]
fn names_must_fit_a_header() {
    let refused = |names: &[&str]| {
        let mut config = FspsConfig::new(2, ([127, 0, 0, 1], 1).into(), "USD");
        config.names = names.iter().map(|name| (*name).to_owned()).collect();
        Fsps::start(config).is_err()
    };
    assert!(refused(&["one"]) && refused(&["one", "two\r\n"]) && refused(&["", "two"]));
    assert!(!refused(&["one", "two"]));
}
