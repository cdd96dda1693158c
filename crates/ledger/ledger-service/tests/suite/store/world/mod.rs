//! A complete ledger in one thread under one seed: clients that repeat unanswered requests, a lane that
//! batches requests, a clock that jumps, a network that loses and duplicates, a disk that fails. A reference
//! machine that never fails runs beside it.

#![allow(dead_code, reason = "not every test uses all of it")]
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use batzen_ledger::machine::read::{
    SearchError, account_balances, account_transfers, change_events, query_transfers,
};
use batzen_ledger::machine::{Digest, History, LogRecord, Machine, MemoryHistory};
use batzen_ledger::{
    AMOUNT_MAX, Account, AccountFilter, AccountFlags, BATCH_EVENTS_MAX, ChangeFilter,
    CreateTransferStatus as S, NS_PER_S, QueryFilter, Transfer, TransferFlags as T,
};
use batzen_ledger_service::store::log::LogReader;
use batzen_ledger_service::store::{
    CreateAccounts, CreateTransfers, DurableMachine, Request, Response, SnapshotOptions, VerifyReport, verify,
};
use batzen_store::embedded::sim::{Fault, SimDisk};
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Backend, Store, StoreError};
use batzen_tables::ledger::{ALL, LedgerSnapshotKey, LedgerSnapshots};

/// The directory of the ledger on the simulated disk.
pub(super) const DIRECTORY: &str = "/ledger";
/// Number of turns after a single fault: its damage shows at the recovery or soon after it.
const AFTERMATH_TURNS: u64 = 5;

/// SplitMix64: reproducible choices.
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A planted bug that the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    None,
    /// The disk reports a sync as done without doing it.
    LyingDisk,
    /// The lane answers even if the commit fails.
    AnswersBeforeCommit,
    /// The changes of a failed batch stay in memory.
    ForgetsToUndo,
}

/// Faults of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Faults {
    None,
    /// Occasional ones.
    Random,
    /// One fault at a given call, then a power cut.
    At(u64, Fault),
    /// One fault at a given call, then the process is killed. A power cut follows once the next process has
    /// answered.
    KilledAt(u64, Fault),
}

/// Counts of what happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stats {
    pub acknowledged: u64,
    pub recoveries: u64,
    pub kept_unanswered: u64,
    pub undone: u64,
    pub released: u64,
    pub calls: u64,
    /// Snapshots that became current.
    pub snapshots: u64,
    /// Openings that found a snapshot begun by the process before.
    pub continued: u64,
    /// Merges of runs.
    pub merges: u64,
}

/// Snapshots of a few records, so that there are many of them.
pub(super) const fn tiny_snapshots(log_bytes: u64) -> SnapshotOptions {
    SnapshotOptions {
        log_bytes_min: log_bytes,
        log_bytes_max: log_bytes,
        page_entries: 4,
        section_pages: 2,
        pending_slack: 4,
        commit_bytes: 500,
        hash_key: Some([7; 16]),
    }
}

pub(super) fn options(disk: &SimDisk) -> Options {
    Options {
        disk: Arc::new(disk.clone()),
        segment_bytes_first: 4 << 10,
        segment_bytes_max: 16 << 10,
        checkpoint_bytes: 24 << 10,
        full_pause: Duration::ZERO,
        background: false,
        on_fatal: Arc::new(|_| {}),
        identity: Some([42; 32]),
        ..Options::default()
    }
}

/// The machine that never fails.
struct Reference {
    machine: Machine,
    history: MemoryHistory,
}

enum Work {
    Due,
    Requests(Vec<Request>),
}

struct Client {
    /// Sent and not answered yet.
    request: Option<Vec<Transfer>>,
    is_queued: bool,
}

pub(super) struct World {
    pub disk: SimDisk,
    random: Random,
    now: u64,
    backend: Option<Arc<EmbeddedStore>>,
    durable: Option<DurableMachine>,
    reference: Reference,
    clients: Vec<Client>,
    /// The answers that clients got for each id.
    told: BTreeMap<u128, (S, u64)>,
    planted: Planted,
    faults: Faults,
    snapshots: SnapshotOptions,
    pub stats: Stats,
}

type Checked<T> = Result<T, String>;

impl World {
    pub(super) fn new(seed: u64, planted: Planted, faults: Faults) -> Self {
        // For each call, a power cut loses something else.
        let call = match faults {
            Faults::At(call, _) | Faults::KilledAt(call, _) => call,
            Faults::None | Faults::Random => 0,
        };
        let disk = SimDisk::new(seed.wrapping_add(call << 32));
        let reference = Reference { machine: Machine::new(&[3; 16]), history: MemoryHistory::default() };
        Self {
            disk,
            random: Random(seed),
            now: 1_000 * NS_PER_S,
            backend: None,
            durable: None,
            reference,
            clients: (0..4).map(|_| Client { request: None, is_queued: false }).collect(),
            told: BTreeMap::new(),
            planted,
            faults,
            snapshots: tiny_snapshots([2_000, 1, 10_000, u64::MAX][usize::try_from(seed % 4).unwrap()]),
            stats: Stats::default(),
        }
    }

    fn open(&mut self) -> Checked<()> {
        let backend = EmbeddedStore::open(Path::new(DIRECTORY), ALL, options(&self.disk));
        let backend = Arc::new(backend.map_err(|error| format!("the store does not open: {error}"))?);
        let store = Store::shared(Arc::clone(&backend) as Arc<dyn Backend>);
        let head = store.get::<LedgerSnapshots>(&LedgerSnapshotKey::ONLY);
        let is_continued = head.is_ok_and(|head| head.is_some_and(|head| head.row.target > 0));
        let durable = DurableMachine::open_with(store, self.snapshots)
            .map_err(|error| format!("the ledger does not open: {error}"))?;
        self.stats.continued += u64::from(is_continued);
        self.backend = Some(backend);
        self.durable = Some(durable);
        Ok(())
    }

    /// Opens the ledger, repeatedly until the planned fault is over.
    fn open_repeatedly(&mut self) -> Checked<()> {
        if self.open().is_err() {
            self.disk.restart();
            return self.open();
        }
        Ok(())
    }

    /// Runs the ledger for some turns. `Err`: a check failed.
    pub(super) fn run(mut self, turns: u64) -> Checked<(Self, VerifyReport)> {
        if let Faults::At(call, fault) | Faults::KilledAt(call, fault) = self.faults {
            self.disk.fail_at(call, fault);
        }
        self.open_repeatedly()?;
        if self.planted == Planted::LyingDisk {
            self.disk.lie_about_syncs();
        }
        let accounts = (1..=6).map(|id| Account {
            id,
            ledger: 1,
            code: 1,
            flags: if id > 2 { AccountFlags::DEBITS_MUST_NOT_EXCEED_CREDITS } else { AccountFlags::NONE },
            ..Account::default()
        });
        let accounts: Vec<Account> = accounts.collect();
        while self.reference.machine.counts().accounts < 6 {
            self.unit(Work::Requests(vec![CreateAccounts(accounts.clone()).into()]), &mut Vec::new())?;
        }
        let mut left = turns;
        while left > 0 {
            self.turn()?;
            left -= 1;
            if matches!(self.faults, Faults::At(..) | Faults::KilledAt(..)) && !self.disk.is_fault_pending() {
                left = left.min(AFTERMATH_TURNS);
            }
        }
        // At the end: a power cut, and everything is there.
        self.recover(None)?;
        let store = Store::shared(self.backend.clone().unwrap() as Arc<dyn Backend>);
        let report = verify(&store).map_err(|error| format!("verification: {error}"))?;
        self.check_answers()?;
        self.stats.calls = self.disk.calls();
        if report.digest != self.reference.machine.digest() {
            return Err("the verified digest differs".to_owned());
        }
        Ok((self, report))
    }

    /// Returns whether a check fails in some turns, or a panic ends them.
    pub(super) fn fails(self, turns: u64) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run(turns).is_err())).unwrap_or(true)
    }

    fn turn(&mut self) -> Checked<()> {
        self.now = match self.random.below(12) {
            0 => self.now - self.random.below(NS_PER_S * 5),
            1 => self.now + self.random.below(NS_PER_S * 5),
            _ => self.now + self.random.below(NS_PER_S / 2),
        };
        // Most faults are for commits.
        let maintains_late = self.random.one_in(3);
        if !maintains_late {
            self.maintain_some()?;
        }
        if matches!(self.faults, Faults::Random) && self.random.one_in(6) {
            let fault = [Fault::Crash, Fault::Crash, Fault::Full, Fault::Error, Fault::ShortWrite];
            let fault = fault[usize::try_from(self.random.below(5)).unwrap()];
            self.disk.fail_at(1 + self.random.below(6), fault);
        }
        if self.random.one_in(5) {
            // Work that failed is repeated later.
            let _ = self.backend.as_ref().unwrap().maintain();
        }
        if maintains_late {
            self.maintain_some()?;
        }
        let mut queue = Vec::new();
        for at in 0..self.clients.len() {
            if self.random.one_in(3) {
                continue;
            }
            if self.clients[at].request.is_none() {
                self.clients[at].request = Some(self.transfers(at));
            }
            queue.push(at);
            // The network duplicates the request.
            if self.random.one_in(8) {
                queue.push(at);
            }
        }
        for n in (1..queue.len()).rev() {
            queue.swap(n, usize::try_from(self.random.below(n as u64 + 1)).unwrap());
        }
        while self.durable.as_ref().unwrap().due_at().is_some_and(|due| due <= self.now) {
            self.unit(Work::Due, &mut Vec::new())?;
        }
        let events = |at: &usize| self.clients[*at].request.clone().unwrap();
        let requests = queue.iter().map(|at| CreateTransfers(events(at)).into()).collect();
        self.unit(Work::Requests(requests), &mut queue)
    }

    fn maintain_some(&mut self) -> Checked<()> {
        let steps = self.random.below(16);
        let mut more = true;
        for _ in 0..steps {
            more = more && self.maintain()?;
        }
        Ok(())
    }

    /// A step of the work of snapshots. Returns whether there may be more.
    fn maintain(&mut self) -> Checked<bool> {
        let durable = self.durable.as_mut().unwrap();
        let before = durable.log().inspect_snapshot();
        let done = durable.maintain();
        let after = durable.log().inspect_snapshot();
        self.stats.snapshots += u64::from(after.records > before.records);
        self.stats.merges += u64::from(after.id_runs < before.id_runs);
        match done {
            Ok(more) => Ok(more),
            Err(error @ (StoreError::Backend(_) | StoreError::Decode { .. } | StoreError::Stale { .. })) => {
                Err(format!("a snapshot: {error}"))
            }
            // The disk: the next commit notices it, too.
            Err(_) => Ok(false),
        }
    }

    fn transfers(&mut self, client: usize) -> Vec<Transfer> {
        let count = match self.random.below(10) {
            0 => 70 + self.random.below(80),
            _ => 1 + self.random.below(6),
        };
        (0..count).map(|_| self.transfer(client)).collect()
    }

    fn transfer(&mut self, client: usize) -> Transfer {
        let random = &mut self.random;
        // Ids of its own, some of them used before, and some shared by all clients.
        let own = 1000 * (client as u128 + 1) + u128::from(random.below(600));
        let id = if random.one_in(6) { 1 + u128::from(random.below(40)) } else { own };
        let debit = 1 + u128::from(random.below(6));
        let flags = [T::NONE, T::PENDING, T::PENDING, T::POST_PENDING_TRANSFER, T::VOID_PENDING_TRANSFER];
        let flags = flags[usize::try_from(random.below(5)).unwrap()];
        let flags = if random.one_in(6) { flags | T::LINKED } else { flags };
        if flags.intersects(T::POST_PENDING_TRANSFER | T::VOID_PENDING_TRANSFER) {
            let told = random.below(self.told.len() as u64 + 1);
            let pending_id = self.told.keys().nth(usize::try_from(told).unwrap()).copied().unwrap_or(7);
            let amount = if flags.contains(T::VOID_PENDING_TRANSFER) { 0 } else { AMOUNT_MAX };
            return Transfer { id, pending_id, amount, flags, ..Transfer::default() };
        }
        Transfer {
            id,
            debit_account_id: debit,
            credit_account_id: 1 + (debit + u128::from(random.below(5))) % 6,
            amount: random.below(50).into(),
            timeout: if flags.contains(T::PENDING) { u32::try_from(random.below(4)).unwrap() } else { 0 },
            ledger: 1,
            code: 1,
            flags,
            ..Transfer::default()
        }
    }

    /// One commit: of due work or of some requests. `senders` are the clients that wait for the answers.
    fn unit(&mut self, work: Work, senders: &mut Vec<usize>) -> Checked<()> {
        let durable = self.durable.as_mut().unwrap();
        let answers = match &work {
            Work::Due => {
                durable.run_due(self.now);
                Ok(Vec::new())
            }
            Work::Requests(requests) => {
                requests.iter().map(|request| durable.execute(request, self.now)).collect()
            }
        };
        let done = match answers {
            Ok(answers) => match durable.commit() {
                Ok(()) => Ok(answers),
                Err(_) if self.planted == Planted::AnswersBeforeCommit => {
                    self.answer(senders, &answers);
                    Err(StoreError::Unavailable(String::new()))
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match done {
            Ok(answers) => {
                let expected = self.run_reference(&work);
                if format!("{answers:?}") != format!("{expected:?}") {
                    return Err(format!("answers differ: {answers:?}, not {expected:?}"));
                }
                self.keep();
                self.answer(senders, &answers);
                self.check_digest()
            }
            Err(StoreError::Full(_)) => {
                if self.planted != Planted::ForgetsToUndo {
                    self.durable.as_mut().unwrap().undo();
                }
                self.stats.undone += 1;
                let clock = self.durable.as_ref().unwrap().machine().clock();
                self.reference.machine.advance_clock(clock);
                self.check_digest()
            }
            Err(_) => self.recover(Some(&work)),
        }
    }

    /// Executes the same work on the reference machine.
    fn run_reference(&mut self, work: &Work) -> Vec<Response> {
        let Reference { machine, history } = &mut self.reference;
        match work {
            Work::Due => {
                let timestamp = machine.operation_timestamp(self.now, BATCH_EVENTS_MAX);
                self.stats.released += machine.pulse(timestamp) as u64;
                Vec::new()
            }
            Work::Requests(requests) => {
                let mut run = |request: &Request| match request {
                    Request::CreateAccounts(CreateAccounts(events)) => {
                        let timestamp = machine.operation_timestamp(self.now, events.len());
                        let Ok(results) = machine.create_accounts(history, events, timestamp);
                        Response::CreateAccounts(results)
                    }
                    Request::CreateTransfers(CreateTransfers(events)) => {
                        let timestamp = machine.operation_timestamp(self.now, events.len());
                        let Ok(results) = machine.create_transfers(history, events, timestamp);
                        Response::CreateTransfers(results)
                    }
                    other => unreachable!("{other:?} is not sent"),
                };
                requests.iter().map(&mut run).collect()
            }
        }
    }

    fn keep(&mut self) {
        let Reference { machine, history } = &mut self.reference;
        history.extend(machine.take_records());
        let mark = machine.mark();
        machine.settle(&mark);
    }

    fn answer(&mut self, senders: &mut Vec<usize>, answers: &[Response]) {
        for (at, answer) in senders.drain(..).zip(answers) {
            // The network loses answers: the client will repeat its request.
            if self.random.one_in(7) {
                continue;
            }
            let (Some(events), Response::CreateTransfers(results)) =
                (self.clients[at].request.take(), answer)
            else {
                continue;
            };
            for (event, result) in events.iter().zip(results) {
                self.stats.acknowledged += 1;
                self.told.insert(event.id, (result.status, result.timestamp));
            }
        }
    }

    fn check_digest(&self) -> Checked<()> {
        let (digest, expected) =
            (self.durable.as_ref().unwrap().machine().digest(), self.reference.machine.digest());
        if digest == expected { Ok(()) } else { Err(format!("the digest is {digest}, not {expected}")) }
    }

    /// A power cut. The interrupted commit is there completely or not at all.
    fn recover(&mut self, interrupted: Option<&Work>) -> Checked<()> {
        self.durable = None;
        self.backend = None;
        let answered = self.answer_after_kill()?;
        self.disk.restart();
        self.open_repeatedly()?;
        let digest = self.durable.as_ref().unwrap().machine().digest();
        if answered.is_some_and(|answered| answered != digest) {
            return Err(format!("a process answered from {answered:?}, and the power loss left {digest}"));
        }
        self.stats.recoveries += 1;
        let digest = self.durable.as_ref().unwrap().machine().digest();
        if digest != self.reference.machine.digest() {
            let Some(work) = interrupted else { return self.check_digest() };
            self.run_reference(work);
            self.keep();
            self.stats.kept_unanswered += 1;
            self.check_digest()?;
        }
        self.check_answers()?;
        // Refusals may have got timestamps that no record has.
        let mut machine = Machine::new(&[4; 16]);
        for record in self.reference.history.records() {
            machine.restore(record).map_err(|error| error.to_string())?;
        }
        machine.advance_clock(self.durable.as_ref().unwrap().machine().clock());
        self.reference.machine = machine;
        self.durable.as_ref().unwrap().machine().check().map_err(|error| error.to_string())
    }

    /// If so far only the process was killed: the digest of the state that the next process answers from.
    fn answer_after_kill(&mut self) -> Checked<Option<Digest>> {
        if !matches!(self.faults, Faults::KilledAt(..)) {
            return Ok(None);
        }
        self.disk.kill();
        self.open()?;
        let digest = self.durable.as_ref().unwrap().machine().digest();
        self.durable = None;
        self.backend = None;
        Ok(Some(digest))
    }

    /// Checks the answers that clients got: created transfers exist, burnt ids are burnt.
    fn check_answers(&self) -> Checked<()> {
        let created = self.told.iter().filter(|(_, (status, _))| status.stands());
        let ids: Vec<u128> = created.clone().map(|(id, _)| *id).collect();
        let durable = self.durable.as_ref().unwrap();
        let reader = LogReader::new(durable.log());
        let found = durable.machine().lookup_transfers(&reader, &ids).map_err(|error| error.to_string())?;
        let found: BTreeMap<u128, u64> = found.iter().map(|t| (t.id, t.timestamp)).collect();
        for (id, (status, timestamp)) in created {
            if found.get(id) != Some(timestamp) {
                return Err(format!("transfer {id} was answered {status} at {timestamp} and is lost"));
            }
        }
        self.check_reads()
    }

    /// Compares reads with those of the reference.
    fn check_reads(&self) -> Checked<()> {
        let durable = self.durable.as_ref().unwrap();
        let reader = LogReader::new(durable.log());
        let Reference { machine, history } = &self.reference;
        let failed = |error: StoreError| format!("a read: {error}");
        let searched = |error: SearchError<StoreError>| format!("a search: {error:?}");
        let equal = |what: &str, same: bool| if same { Ok(()) } else { Err(format!("{what} differ")) };
        let times: Vec<u64> = history.records().iter().map(LogRecord::timestamp).collect();
        let mut random = Random(self.now ^ times.len() as u64);
        let mut time = || {
            if times.is_empty() {
                0
            } else {
                times[usize::try_from(random.below(times.len() as u64)).unwrap()]
            }
        };
        for account_id in 1..=6 {
            let (timestamp_min, timestamp_max) = (time(), if account_id % 2 == 0 { 0 } else { time() });
            let (debits, credits, limit, reversed) = (true, true, 20, account_id % 3 == 0);
            let filter = AccountFilter {
                timestamp_min,
                timestamp_max,
                debits,
                credits,
                limit,
                reversed,
                ..AccountFilter::all(account_id)
            };
            let (ours, theirs) = (durable.machine().account_cursor(&filter), machine.account_cursor(&filter));
            if let (Some(ours), Some(theirs)) = (&ours, &theirs) {
                let expected = account_transfers(history, theirs, &filter, u64::MAX).unwrap();
                let found = account_transfers(&reader, ours, &filter, u64::MAX).map_err(searched)?;
                equal("transfers of an account", found == expected)?;
                let expected = account_balances(history, theirs, &filter, u64::MAX).unwrap();
                let found = account_balances(&reader, ours, &filter, u64::MAX).map_err(searched)?;
                equal("balances of an account", found == expected)?;
            }
            equal("cursors", ours.is_some() == theirs.is_some())?;
            let filter =
                QueryFilter { timestamp_min, timestamp_max, limit, reversed, ..QueryFilter::default() };
            let expected = query_transfers(history, &filter, u64::MAX).unwrap();
            equal("queried", query_transfers(&reader, &filter, u64::MAX).map_err(searched)? == expected)?;
            let filter = ChangeFilter { timestamp_min, timestamp_max, limit };
            let Ok(expected) = change_events(history, machine, &filter);
            let found = change_events(&reader, &**durable.log(), &filter).map_err(failed)?;
            equal("events", found == expected)?;
        }
        equal("numbers of records", reader.len() == history.len())
    }

    pub(super) fn digest(&self) -> Digest {
        self.reference.machine.digest()
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }
}

/// The factor by which a long run does more than usual: `BATZEN_SOAK_FACTOR`, or 1.
pub(super) fn soak_factor() -> u64 {
    std::env::var("BATZEN_SOAK_FACTOR")
        .map_or(1, |factor| factor.parse().expect("BATZEN_SOAK_FACTOR is a number"))
}
