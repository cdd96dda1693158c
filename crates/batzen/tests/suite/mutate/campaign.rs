//! A run against one process, and the checks on that process.

use std::path::{Path, PathBuf};

use crate::common::Service;
use crate::mutate::dice::Dice;
use crate::mutate::pump::{self, Failure, Listener};
use crate::mutate::score::Score;

/// The default number of requests to all services together.
const REQUESTS: u64 = 21_000;
/// The runs, their tests, and what percentage of the requests each sends. Services that answer faster get more than an
/// even share, so that a large total takes less time.
const SHARES: [(&str, &str, u64); 10] = [
    ("exchange", "deployment", 25),
    ("merchant", "deployment", 17),
    ("auditor", "deployment", 4),
    ("feed", "deployment", 2),
    ("bank", "deployment", 10),
    ("ledger_http", "ledger_http", 10),
    ("ledger_frames", "ledger_frames", 13),
    ("switch", "switch", 15),
    ("signer", "signer", 3),
    ("signer_pages", "signer_pages", 1),
];
/// Memory growth that needs no explanation.
const GROWTH_BYTES: u64 = 64 << 20;
/// The memory that one successful request may leave behind for its rows in indexes.
const GROWTH_BYTES_PER_ROW: u64 = 256;
/// The most memory that a process may use while large bodies are under way.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The number of requests, and the seed of all choices.
pub(super) struct Plan {
    pub service: &'static str,
    /// The beginning of the name of its test.
    test: &'static str,
    pub requests: u64,
    pub seed: u64,
    /// The number of requests to all services.
    total: u64,
}

impl Plan {
    pub(super) fn new(service: &'static str) -> Self {
        let share = SHARES.iter().find(|(name, ..)| *name == service);
        let (_, test, percent) = share.expect("every run has a share");
        let total = setting("BATZEN_MUTATE_REQUESTS", REQUESTS);
        let requests = (total * percent).div_ceil(100);
        Self { service, test, requests, seed: setting("BATZEN_MUTATE_SEED", 1), total }
    }

    /// The bytes with which an earlier run failed, to be sent instead of new requests; empty if that was the run of
    /// another service.
    pub(super) fn replay(&self) -> Option<Vec<u8>> {
        let file = PathBuf::from(std::env::var_os("BATZEN_MUTATE_REPLAY")?);
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with(&format!("{}-", self.service)) {
            return Some(Vec::new());
        }
        Some(std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
    }

    /// The number of requests between two looks at the process.
    fn sparse(&self) -> u64 {
        (self.requests / 40).max(2000)
    }

    /// Looks at the process from time to time. `bytes`: the latest requests.
    pub(super) fn look(&self, watched: &mut Watched<'_>, score: &mut Score, looked: &mut u64, bytes: &[u8]) {
        if score.sent < *looked + self.sparse() {
            return;
        }
        *looked = score.sent;
        if let Err(what) = watched.look(score, *looked) {
            self.fail_with(what, bytes.to_vec(), *looked);
        }
    }

    /// Checks the process after a run, and shows the figures.
    pub(super) fn finish(&self, watched: &mut Watched<'_>, score: &mut Score) {
        if let Err(what) = watched.judge(score) {
            self.fail_with(what, Vec::new(), score.sent);
        }
        println!("{}", score.json(self.service, self.seed));
    }

    /// Fails the test at the first listener, after these bytes.
    pub(super) fn fail_with(&self, what: String, bytes: Vec<u8>, after: u64) -> ! {
        self.fail(&Failure { what, listener: 0, bytes, start: 0 }, after)
    }

    /// Writes the bytes of a failure to a file, and fails the test.
    fn fail(&self, failure: &Failure, after: u64) -> ! {
        let Self { service, test, seed, total, .. } = self;
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mutate");
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join(format!("{service}-{seed}-{after}.request"));
        std::fs::write(&file, &failure.bytes).unwrap();
        panic!(
            "{service}, listener {}, after {after} requests: {}\n\
             The requests that were sent together, the wrong one at byte {start}: {file}\n\
             To send these bytes alone: BATZEN_MUTATE_REPLAY={file} cargo test -p batzen --test suite -- {test}_survives --nocapture\n\
             To repeat the run, with the same choices and new keys: \
             BATZEN_MUTATE_SEED={seed} BATZEN_MUTATE_REQUESTS={total} cargo test -p batzen --test suite -- {test}_survives",
            failure.listener,
            failure.what,
            start = failure.start,
            file = file.canonicalize().unwrap_or(file).display(),
        );
    }
}

/// A process that is observed during the run.
pub(super) struct Watched<'a> {
    pub service: &'a mut Service,
    pub log: PathBuf,
}

impl Watched<'_> {
    /// Resident memory in bytes.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.service.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }

    /// Checks the process now.
    pub(super) fn look(&mut self, score: &mut Score, sent: u64) -> Result<(), String> {
        if let Some(status) = self.service.child.try_wait().unwrap() {
            return Err(format!("the service has ended: {status}\n{}", self.last_lines()));
        }
        score.memory.push((sent, self.memory()));
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn last_lines(&self) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Checks the process after a run.
    pub(super) fn judge(&mut self, score: &mut Score) -> Result<(), String> {
        self.look(score, score.sent)?;
        if let Some(line) = self.text().lines().find(|line| line.contains("panicked at")) {
            return Err(format!("something has panicked: {line}"));
        }
        if let Err(what) = check_memory(&score.memory, score.sent, score.done()) {
            let history: Vec<String> =
                score.memory.iter().map(|(sent, bytes)| format!("{sent}: {} MiB", bytes >> 20)).collect();
            return Err(format!("{what}: {}", history.join(", ")));
        }
        Ok(())
    }
}

/// Checks the memory during a run, given as (requests sent, bytes). Buffers of large requests come and go, so
/// the minimum of the last fifth, which was never freed, is compared with the maximum of the first two
/// fifths.
fn check_memory(memory: &[(u64, u64)], sent: u64, done: u64) -> Result<(), String> {
    let begin = memory.iter().filter(|(after, _)| *after <= sent / 5 * 2).map(|(_, bytes)| *bytes).max();
    let end = memory.iter().filter(|(after, _)| *after >= sent / 5 * 4).map(|(_, bytes)| *bytes).min();
    let most = memory.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default();
    if most > MEMORY_BYTES_MAX {
        return Err(format!("the memory is {} MiB at times", most >> 20));
    }
    match (begin, end) {
        (Some(begin), Some(end)) if end > begin + GROWTH_BYTES + GROWTH_BYTES_PER_ROW * done => {
            Err("the memory grows".to_owned())
        }
        _ => Ok(()),
    }
}

/// A leak of 200 bytes per request is found; memory that is used and freed is not reported.
#[test]
fn growing_memory_is_found() {
    let run = |bytes: &dyn Fn(u64) -> u64| -> Vec<(u64, u64)> {
        (1..=40).map(|look| (look * 25_000, bytes(look * 25_000))).collect()
    };
    let check = |memory: &[(u64, u64)], done| check_memory(memory, 1_000_000, done);
    assert_eq!(check(&run(&|sent| (80 << 20) + sent / 25_000 % 7 * (20 << 20)), 0), Ok(()));
    assert!(check(&run(&|sent| (80 << 20) + 200 * sent), 0).is_err());
    assert_eq!(check(&run(&|sent| (80 << 20) + 200 * sent), 100_000), Ok(()), "rows need memory");
    assert!(check(&[(500_000, 2 << 30)], 0).is_err());
}

/// Sends the requests of the plan, and shows the figures.
pub(super) fn run(plan: &Plan, listeners: &[Listener], watched: &mut Watched<'_>) {
    if let Some(bytes) = plan.replay() {
        for (number, listener) in listeners.iter().enumerate() {
            println!("listener {number}:");
            pump::replay(listener, &bytes).unwrap();
        }
        return watched.judge(&mut Score::new()).unwrap_or_else(|what| panic!("{what}"));
    }
    let mut dice = Dice::new(plan.seed);
    let mut score = Score::new();
    let mut memory = Score::new();
    let sparse = plan.sparse();
    let mut next = 0;
    let result = pump::run(listeners, plan.requests, &mut dice, &mut score, &mut |score| {
        let looks = score.sent >= next;
        if looks {
            next = score.sent + sparse;
            watched.look(&mut memory, score.sent)?;
            if plan.requests > 100_000 {
                let seconds = score.begun.elapsed().as_secs();
                let bytes = memory.memory.last().map_or(0, |(_, bytes)| *bytes);
                println!("{} {} requests in {seconds} s, {} MiB", plan.service, score.sent, bytes >> 20);
            }
        }
        Ok(())
    });
    score.memory = memory.memory;
    if let Err(mut failure) = result {
        // If the process is gone, that says more than a missing answer.
        std::thread::sleep(std::time::Duration::from_millis(300));
        if let Err(what) = watched.look(&mut score, 0) {
            failure.what = format!("{}; {what}", failure.what);
        }
        plan.fail(&failure, score.sent);
    }
    if let Err(what) = watched.judge(&mut score) {
        plan.fail_with(what, Vec::new(), score.sent);
    }
    println!("{:>10} {:>10} {:>10} {:>8}  endpoint of {}", "sent", "done", "refused", "busy", plan.service);
    for ((listener, route), tally) in &score.tallies {
        let routes = &listeners[*listener].seeds.routes;
        let name = routes.get(*route).map(ToString::to_string);
        let name = name.unwrap_or_else(|| "no endpoint".to_owned());
        println!("{:>10} {:>10} {:>10} {:>8}  {name}", tally.sent, tally.done, tally.refused, tally.busy);
    }
    println!("{}", score.json(plan.service, plan.seed));
    // A run that does not reach an endpoint proves nothing about it.
    for (number, listener) in listeners.iter().enumerate() {
        for (route, endpoint) in listener.seeds.routes.iter().enumerate() {
            let sent = score.tallies.get(&(number, route)).map_or(0, |tally| tally.sent);
            let is_enough = sent > 0 || plan.requests < 2000 || endpoint.is_page();
            assert!(is_enough, "{endpoint} got no request");
        }
    }
}
