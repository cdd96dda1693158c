use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use super::client::Times;
use super::*;
use crate::bench::load::wire;

/// A server that answers each request after `pause`, with 500 if `fails` returns true for its number and 200
/// otherwise.
fn server(
    pause: impl Fn(u64) -> Duration + Send + Sync + 'static,
    fails: fn(u64) -> bool,
) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let (counted, pause) = (Arc::clone(&count), Arc::new(pause));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, counted, pause) = (stream.unwrap(), Arc::clone(&counted), Arc::clone(&pause));
            std::thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                let mut request = [0; 4096];
                while let Ok(length) = stream.read(&mut request) {
                    if length == 0 {
                        return;
                    }
                    let number = counted.fetch_add(1, Relaxed);
                    std::thread::sleep(pause(number));
                    let status = if fails(number) { 500 } else { 200 };
                    // Sent in two parts, because answers need not arrive at once.
                    let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\nok");
                    let (first, second) = answer.split_at(30);
                    if stream.write_all(first.as_bytes()).is_err() {
                        return;
                    }
                    if number % 7 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let _ = stream.write_all(second.as_bytes());
                }
            });
        }
    });
    (address, count)
}

/// Jobs of two requests.
struct Pairs {
    left: u64,
    is_second: Vec<bool>,
}

fn pairs(left: u64) -> Pairs {
    Pairs { left, is_second: vec![false; 64] }
}

impl Script for Pairs {
    fn begin(&mut self, slot: usize) -> Option<Outgoing> {
        self.left = self.left.checked_sub(1)?;
        self.is_second[slot] = false;
        Some(Outgoing { bytes: wire::get("/first"), kind: 0 })
    }

    fn answer(&mut self, slot: usize, status: u16, body: &[u8]) -> (u64, Next) {
        assert_eq!(body, b"ok");
        if status != 200 {
            return (0, Next::Failed(format!("HTTP {status}")));
        }
        if std::mem::replace(&mut self.is_second[slot], true) {
            return (1, Next::Done);
        }
        (7, Next::Send(Outgoing { bytes: wire::post("/second", &()), kind: 1 }))
    }
}

fn plan(server: SocketAddr, schedule: Schedule, duration: Option<Duration>) -> Plan {
    let kinds = vec![Kind::uncounted("first"), Kind::counted("second")];
    Plan {
        servers: vec![server],
        clients: 5,
        schedule,
        warmup: Duration::ZERO,
        duration,
        kinds,
        cores: Vec::new(),
    }
}

fn go(plan: &Plan, scripts: Vec<Pairs>) -> (LoadOutcome, Vec<Pairs>) {
    run(plan, scripts, &mut (), &Arc::default()).unwrap()
}

#[test]
fn every_job_is_done_once() {
    let (address, seen) = server(|_| Duration::ZERO, |_| false);
    let (outcome, scripts) = go(&plan(address, Schedule::Closed, None), vec![pairs(100), pairs(51)]);
    assert_eq!((outcome.all.ops, outcome.all.requests, seen.load(Relaxed)), (151, 302, 302));
    assert_eq!((outcome.kinds[0].ops, outcome.kinds[1].ops, outcome.ops_in_all), (7 * 151, 151, 151));
    assert!(outcome.errors.is_empty() && !outcome.is_exhausted && outcome.measured > Duration::ZERO);
    assert_eq!(outcome.seconds.iter().map(|second| second.requests).sum::<u64>(), 302);
    assert!(scripts.iter().all(|script| script.left == 0));
}

#[test]
fn failures_are_counted_and_end_their_job() {
    let (address, _) = server(|_| Duration::ZERO, |number| number % 10 == 3);
    let (outcome, _) = go(&plan(address, Schedule::Closed, None), vec![pairs(200)]);
    let failed = outcome.errors["HTTP 500"];
    assert_eq!(outcome.all.ops + failed, 200);
    assert!(failed > 10, "{failed}");
}

#[test]
fn a_run_ends_in_time_or_with_its_jobs() {
    let (address, _) = server(|_| Duration::from_millis(1), |_| false);
    let time = Duration::from_millis(300);
    // A busy machine may do something else for that long, so there are further tries.
    let run = || go(&plan(address, Schedule::Closed, Some(time)), vec![pairs(1_000_000)]);
    let (outcome, scripts) =
        (0..20).map(|_| run()).find(|(outcome, _)| outcome.all.ops > 0).expect("one run gets a processor");
    assert!(!outcome.is_exhausted && outcome.measured == time && outcome.ops_in_all >= outcome.all.ops);
    assert!(scripts[0].left > 0);
    let (outcome, _) = go(&plan(address, Schedule::Closed, Some(Duration::from_secs(600))), vec![pairs(10)]);
    assert!(outcome.is_exhausted && outcome.measured < Duration::from_secs(600));
}

#[test]
fn a_stall_shows_in_an_open_loop_only() {
    // The server stalls once, for half a second. Closed loop: five requests are slow, and no others start
    // meanwhile.
    let slow = Duration::from_millis(500);
    let stall = move |number| if (100..105).contains(&number) { slow } else { Duration::ZERO };
    // A busy machine stalls by itself, and makes the generator late, so there are further tries.
    let run = |schedule| {
        let (address, _) = server(stall, |_| false);
        go(&plan(address, schedule, None), vec![pairs(400)]).0
    };
    let slow_ones = |outcome: &LoadOutcome| outcome.all.latency.count_between(100_000, LATENCY_MAX_US);
    let closed = (0..20)
        .map(|_| run(Schedule::Closed))
        .inspect(|closed| assert!(closed.all.latency.max() >= 490_000))
        .find(|closed| slow_ones(closed) <= 30)
        .expect("one run has no other stall");

    // Open loop at 400 a second: every request due during the stall was slow, about 160 of them by more than
    // 100 ms.
    let is_late = |open: &LoadOutcome| open.missed >= 100 || open.late_p99_us >= 300_000;
    let open = (0..20)
        .map(|_| run(Schedule::Open { jobs_per_s: 400.0 }))
        .find(|open| !is_late(open))
        .expect("one run begins its jobs in time");
    assert!(slow_ones(&open) >= 100, "{}", slow_ones(&open));
    assert_eq!(open.all.ops, 400);
    // The server is to blame: all five clients were waiting.
    assert!(open.waited_for_client >= 100, "{}", open.waited_for_client);
    assert_eq!((open.clients_used, closed.waited_for_client), (5, 0));

    // The moments show when it happened: one holds the longest latency, and most hold nothing near it.
    assert_eq!(open.moments.iter().map(|moment| moment.requests).sum::<u64>(), open.all.requests);
    let slow_moments = open.moments.iter().filter(|moment| moment.latency_max_us >= 490_000).count();
    assert!((1..open.moments.len() / 2).contains(&slow_moments), "{slow_moments}");
}

/// A script that blocks in one of its jobs, as if its thread had lost its processor.
struct HeldUp {
    pairs: Pairs,
    at: u64,
    time: Duration,
}

impl Script for HeldUp {
    fn begin(&mut self, slot: usize) -> Option<Outgoing> {
        if self.pairs.left == self.at {
            std::thread::sleep(self.time);
        }
        self.pairs.begin(slot)
    }

    fn answer(&mut self, slot: usize, status: u16, body: &[u8]) -> (u64, Next) {
        self.pairs.answer(slot, status, body)
    }
}

#[test]
fn jobs_that_the_generator_missed_are_left_out() {
    let (address, seen) = server(|_| Duration::ZERO, |_| false);
    let plan = Plan { clients: 40, ..plan(address, Schedule::Open { jobs_per_s: 200.0 }, None) };
    let script = HeldUp { pairs: pairs(200), at: 150, time: Duration::from_millis(500) };
    let (outcome, _) = run(&plan, vec![script], &mut (), &Arc::default()).unwrap();
    // The script still completes all jobs, at later times.
    assert_eq!((outcome.all.ops, seen.load(Relaxed)), (200, 400));
    assert!((95..=200).contains(&outcome.missed), "about 100 had their time meanwhile: {}", outcome.missed);
    assert!(outcome.late_max_us >= 480_000, "{}", outcome.late_max_us);
    // Only jobs under way waited, at most one for each client.
    let slow = outcome.all.latency.count_between(400_000, LATENCY_MAX_US);
    assert!(slow <= 40, "{slow}");
}

/// A server that closes the connection of its first request and then accepts no other for a while. A client
/// that connects in that time waits for about a second, until it retries.
fn unreachable_for_a_while() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let first_two: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        let (is_first, is_full) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let serve = |mut stream: std::net::TcpStream| {
            let (is_first, is_full) = (Arc::clone(&is_first), Arc::clone(&is_full));
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                while stream.read(&mut request).is_ok_and(|length| length > 0) {
                    let closes = is_first.swap(false, Relaxed);
                    let fillers = closes.then(|| {
                        let time = Duration::from_millis(100);
                        let more = || std::net::TcpStream::connect_timeout(&address, time).ok();
                        let fillers: Vec<_> = std::iter::from_fn(more).take(10_000).collect();
                        is_full.store(true, Relaxed);
                        fillers
                    });
                    let close = if closes { "Connection: close\r\n" } else { "" };
                    let answer = format!("HTTP/1.1 200 x\r\nContent-Length: 2\r\n{close}\r\nok");
                    if stream.write_all(answer.as_bytes()).is_err() || closes {
                        // The fillers occupy the queue until they are accepted.
                        std::thread::sleep(Duration::from_millis(300));
                        drop(fillers);
                        return;
                    }
                }
            });
        };
        first_two.into_iter().for_each(serve);
        while !is_full.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(400));
        listener.incoming().map_while(Result::ok).for_each(serve);
    });
    address
}

#[test]
fn an_unreachable_server_does_not_count_as_a_late_generator() {
    let run = || {
        let address = unreachable_for_a_while();
        let plan = Plan { clients: 2, ..plan(address, Schedule::Open { jobs_per_s: 200.0 }, None) };
        go(&plan, vec![pairs(400)]).0
    };
    let slow_ones = |outcome: &LoadOutcome| outcome.all.latency.count_between(300_000, LATENCY_MAX_US);
    // About a second's jobs begin late, though a client was free. A busy machine makes the generator itself late, so there
    // are further tries.
    let is_told_apart = |outcome: &LoadOutcome| {
        assert_eq!(outcome.all.ops, 400);
        slow_ones(outcome) >= 50 && outcome.waited_for_client >= 100 && outcome.missed < 100
    };
    assert!((0..10).map(|_| run()).any(|outcome| is_told_apart(&outcome)));
}

#[test]
fn threads_of_a_finished_load_remain_until_the_run_ends() {
    /// CPU time of the threads at the end, by name.
    #[derive(Default)]
    struct End(BTreeMap<String, u64>);

    impl Observer for End {
        fn ends(&mut self) {
            self.0 = crate::bench::load::procfs::own_threads_ns("load-");
        }
    }

    let (address, _) = server(|_| Duration::ZERO, |_| false);
    let plan = plan(address, Schedule::Closed, Some(Duration::from_secs(600)));
    let mut end = End::default();
    // More threads than any test that runs at the same time.
    let scripts = (0..5).map(|_| pairs(20)).collect();
    let (outcome, _) = run(&plan, scripts, &mut end, &Arc::default()).unwrap();
    assert!(outcome.is_exhausted);
    assert!(end.0.get("load-4").is_some_and(|ns| *ns > 0), "{:?}", end.0);
}

#[test]
#[should_panic(expected = "whoever looks on")]
fn an_observer_that_panics_ends_the_run() {
    struct Panics;

    impl Observer for Panics {
        fn begins(&mut self) {
            panic!("whoever looks on");
        }
    }

    let (address, _) = server(|_| Duration::ZERO, |_| false);
    let _ = run(&plan(address, Schedule::Closed, None), vec![pairs(20)], &mut Panics, &Arc::default());
}

#[test]
fn planned_times_keep_the_rate() {
    let all: Vec<u64> = (0..3)
        .flat_map(|thread| {
            let mut times = Times::new(Schedule::Open { jobs_per_s: 1_000.0 }, thread, 3);
            (0..10).map(move |_| {
                let next = times.next_ns().unwrap();
                times.begun();
                next
            })
        })
        .collect();
    let mut sorted = all;
    sorted.sort_unstable();
    for (index, time) in (0_u64..).zip(sorted) {
        assert!(time.abs_diff(index * 1_000_000) < 10, "{index}: {time}");
    }
    assert_eq!(Times::new(Schedule::Closed, 0, 1).next_ns(), None);
}

#[test]
fn a_server_that_is_gone_ends_the_run() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let plan = plan(address, Schedule::Closed, Some(Duration::from_secs(600)));
    std::thread::spawn(move || {
        let streams: Vec<_> = listener.incoming().take(5).collect();
        drop((listener, streams));
    });
    let (outcome, _) = go(&plan, vec![pairs(10)]);
    assert!(outcome.all.ops == 0 && !outcome.errors.is_empty());
}
