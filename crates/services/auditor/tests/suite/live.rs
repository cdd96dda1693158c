//! Results that are kept up to date: what is found, when it is resolved or suppressed, and that they can be gone on from.

use batzen_auditor::audit::{AuditError, Options, Progress, RowChange, Rule, Subject, Version};
use batzen_auditor::live::{self, Asked, CopyPosition, Live, NoteError, TrackedFinding};
use batzen_crypto::{EddsaPublicKey, EddsaSignature, ShortHash};
use batzen_protocol::{Money, Timestamp};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Change, ChangeSet, CommitOutcome, List, Record, Store, Table};
use batzen_tables::auditor::copy::{FeedPositionKey, FeedPositionRow, FeedPositions};
use batzen_tables::auditor::results::AuditReserveSums;
use batzen_tables::exchange::{
    AccountId, ReserveInKey, ReserveInRow, ReserveKey, ReserveRow, Reserves, ReservesIn,
};

pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A copy and its results.
pub(crate) struct Copy {
    pub store: Store,
    pub subject: Subject,
    next: u64,
}

impl Copy {
    pub(crate) fn new() -> Self {
        Self::on(Store::new(MemoryBackend::new()))
    }

    fn with_results() -> (Self, Live) {
        let copy = Self::new();
        let live = copy.live();
        (copy, live)
    }

    pub(crate) fn on(store: Store) -> Self {
        let subject = Subject {
            currency: "KUDOS".parse().unwrap(),
            master_pub: EddsaPublicKey::from_bytes([1; 32]),
            base_url: "https://exchange.example/".to_owned(),
            round_unit: 0,
            auditor: None,
        };
        Self { store, subject, next: 0 }
    }

    pub(crate) fn live(&self) -> Live {
        Live::open(&self.store, &self.subject, 2).unwrap().expect("the results are about the copy")
    }

    fn check_all(&self) -> Result<Live, AuditError> {
        Live::check_all(&self.store, &self.subject, 1, NOW, &Progress::default())
    }

    fn position_row(&self, next: u64) -> FeedPositionRow {
        FeedPositionRow {
            exchange_store: [1; 16],
            next,
            head: ShortHash::from_bytes([0; 32]),
            is_whole: true,
            tables: List(Vec::new()),
            snapshots: 0,
            batches: next,
            time: NOW,
            signature: EddsaSignature::from_bytes([0; 64]),
            exchange_signature: EddsaSignature::from_bytes([0; 64]),
        }
    }

    /// Moves the copy's position by one.
    fn advance(&mut self, set: &mut ChangeSet) {
        let key = FeedPositionKey { id: 0 };
        match self.next {
            0 => set.insert::<FeedPositions>(&key, &self.position_row(1)),
            next => set.update::<FeedPositions>(&key, &self.position_row(next), &self.position_row(next + 1)),
        }
        self.next += 1;
    }

    /// Applies changes with their results.
    pub(crate) fn apply(&mut self, live: &mut Live, changes: Vec<RowChange>) {
        let position = CopyPosition { next: self.next + 1, snapshots: 0 };
        let mut set = live.apply(changes.clone(), position, NOW).unwrap();
        for RowChange { table, key, old, new } in changes {
            set.push(match (old, new) {
                (None, Some(new)) => Change::Insert { table, key, row: new.row },
                (Some(old), Some(new)) => {
                    Change::Update { table, key, old_row: old.row, version: None, row: new.row }
                }
                (Some(old), None) => Change::Delete { table, key, old_row: old.row, version: None },
                (None, None) => unreachable!("it is a change"),
            });
        }
        self.advance(&mut set);
        assert_eq!(self.store.commit(&set).unwrap(), CommitOutcome::Committed);
    }

    pub(crate) fn findings(&self) -> Vec<TrackedFinding> {
        live::findings(&self.store).unwrap()
    }

    #[track_caller]
    fn one(&self, rule: &str) -> TrackedFinding {
        let all = self.findings();
        let found = all.iter().find(|kept| kept.row.rule == rule);
        found.unwrap_or_else(|| panic!("no {rule}: {all:#?}")).clone()
    }
}

pub(crate) fn change<T: Table>(key: &T::Key, old: Option<&T::Row>, new: Option<&T::Row>) -> RowChange {
    let version = |row: &T::Row| Version { row: row.to_bytes(), serial: 7 };
    RowChange { table: T::DEF, key: key.to_bytes(), old: old.map(version), new: new.map(version) }
}

/// The options of an audit that asks neither banks nor merchants.
pub(crate) fn options(now: Timestamp, copied: Option<Timestamp>) -> Options {
    Options {
        now,
        internal: true,
        in_order: true,
        threads: 1,
        bank: Vec::new(),
        confirmations: Vec::new(),
        copied,
    }
}

pub(crate) fn money(units: u128) -> Money {
    Money::from_units(units).unwrap()
}

fn reserve_pub() -> EddsaPublicKey {
    EddsaPublicKey::from_bytes([5; 32])
}

fn credit() -> (ReserveInKey, ReserveInRow) {
    let key = ReserveInKey { reserve_pub: reserve_pub(), account: AccountId([1; 8]), bank_row: 1 };
    (key, ReserveInRow { amount: money(500), h_payto: ShortHash::from_bytes([2; 32]), time: NOW })
}

fn reserve(units: u128) -> (ReserveKey, ReserveRow) {
    let later = NOW.saturating_add(batzen_protocol::Duration::from_days(30));
    let row = ReserveRow {
        balance: money(units),
        expiration: later,
        gc: later,
        origin: Some(ShortHash::from_bytes([2; 32])),
    };
    (ReserveKey { reserve_pub: reserve_pub() }, row)
}

#[test]
fn findings_come_go_and_come_back() {
    let (mut copy, mut live) = Copy::with_results();
    let ((credit_key, credit), (key, right)) = (credit(), reserve(500));
    copy.apply(&mut live, vec![change::<ReservesIn>(&credit_key, None, Some(&credit))]);
    assert!(copy.one("reserve-missing").is_open());
    // The reserve comes: it is no longer so, and stays on record.
    copy.apply(&mut live, vec![change::<Reserves>(&key, None, Some(&right))]);
    assert_eq!(copy.one("reserve-missing").row.resolved, Some(NOW));
    assert!(copy.findings().iter().all(|kept| !kept.is_open()));

    let (_, wrong) = reserve(600);
    copy.apply(&mut live, vec![change::<Reserves>(&key, Some(&right), Some(&wrong))]);
    let found = copy.one("reserve-balance");
    assert!(found.is_open());
    assert_eq!((found.finding.exchange, found.finding.auditor, found.finding.at_risk), (600, 500, 100));
    // Suppressed: it stays, and the verdict is right again.
    live::note(&copy.store, found.id, true, "known", NOW).unwrap();
    let again = live::note(&copy.store, found.id, true, "known", NOW);
    assert!(matches!(again, Err(NoteError::Already(_))), "{again:?}");
    assert!(matches!(live::note(&copy.store, found.id, false, " ", NOW), Err(NoteError::Reason)));
    let outcome = live.report(NOW).unwrap();
    assert!(outcome.faults().all(|fault| fault.rule.info().name != "reserve-balance"));
    assert_eq!(outcome.suppressed.len(), 1);
    // With other figures it is open again, and says why.
    let (_, worse) = reserve(700);
    copy.apply(&mut live, vec![change::<Reserves>(&key, Some(&wrong), Some(&worse))]);
    let reopened = copy.one("reserve-balance");
    assert!(reopened.is_open());
    assert_eq!(reopened.notes.iter().map(|note| note.suppresses).collect::<Vec<_>>(), [true, false]);
    // Gone, and back again: one finding with one story.
    copy.apply(&mut live, vec![change::<Reserves>(&key, Some(&worse), Some(&right))]);
    assert!(copy.one("reserve-balance").row.resolved.is_some());
    copy.apply(&mut live, vec![change::<Reserves>(&key, Some(&right), Some(&worse))]);
    assert!(copy.one("reserve-balance").is_open());
    assert_eq!(copy.findings().iter().filter(|kept| kept.row.rule == "reserve-balance").count(), 1);

    // What happened stays: that a credit was rewritten, and that it was removed.
    let halved = ReserveInRow { amount: money(250), ..credit.clone() };
    copy.apply(&mut live, vec![change::<ReservesIn>(&credit_key, Some(&credit), Some(&halved))]);
    copy.apply(&mut live, vec![change::<ReservesIn>(&credit_key, Some(&halved), None)]);
    copy.apply(&mut live, vec![change::<ReservesIn>(&credit_key, None, Some(&credit))]);
    assert!(copy.one("row-rewritten").is_open() && copy.one("row-removed").is_open());
    let whole = copy.check_all().unwrap();
    assert!(copy.one("row-rewritten").is_open() && copy.one("row-removed").is_open());
    assert_eq!(whole.totals(), live.totals());
}

#[test]
fn results_are_gone_on_from_only_where_they_hold() {
    let (mut copy, mut live) = Copy::with_results();
    let ((credit_key, credit), (key, right)) = (credit(), reserve(500));
    let changes = vec![
        change::<ReservesIn>(&credit_key, None, Some(&credit)),
        change::<Reserves>(&key, None, Some(&right)),
    ];
    copy.apply(&mut live, changes);
    assert_eq!(live.totals().sheet(&copy.subject).wired_in.units, 500);
    let again = copy.live();
    assert_eq!((again.totals(), again.state()), (live.totals(), live.state()));
    assert_eq!(live::hours(&copy.store, Timestamp::ZERO).unwrap().len(), 1);
    // A batch that nobody checked.
    let mut set = ChangeSet::new();
    copy.advance(&mut set);
    assert_eq!(copy.store.commit(&set).unwrap(), CommitOutcome::Committed);
    assert!(Live::open(&copy.store, &copy.subject, 1).unwrap().is_none());
    let checked = copy.check_all().unwrap();
    assert_eq!(checked.totals(), live.totals());
    assert_eq!(copy.live().totals(), live.totals());
    // In the middle of a snapshot nothing can be said.
    let (old, key) = (copy.position_row(copy.next), FeedPositionKey { id: 0 });
    let mut set = ChangeSet::new();
    set.update::<FeedPositions>(&key, &old, &FeedPositionRow { is_whole: false, ..old.clone() });
    assert_eq!(copy.store.commit(&set).unwrap(), CommitOutcome::Committed);
    assert!(Live::open(&copy.store, &copy.subject, 1).unwrap().is_none());
    assert!(copy.check_all().is_err());
}

/// A copy stores the rows of a batch or a snapshot in an order of its own, so it does not know which transfer came first.
#[test]
fn any_sender_may_be_the_origin_in_a_copy_and_only_the_first_in_the_rows_of_an_exchange() {
    let account = |byte| Some(ShortHash::from_bytes([byte; 32]));
    for (origin, is_known) in [(account(2), true), (account(3), true), (account(4), false), (None, false)] {
        let (mut copy, mut live) = Copy::with_results();
        let (key, row) = reserve(1_000);
        let row = ReserveRow { origin, ..row };
        let (first, credit) = credit();
        let second = ReserveInKey { bank_row: 2, ..first.clone() };
        let other = ReserveInRow { h_payto: account(3).unwrap(), ..credit.clone() };
        copy.apply(
            &mut live,
            vec![
                change::<ReservesIn>(&first, None, Some(&credit)),
                change::<ReservesIn>(&second, None, Some(&other)),
                change::<Reserves>(&key, None, Some(&row)),
            ],
        );
        let is_found = copy.findings().iter().any(|kept| kept.row.rule == "reserve-origin");
        assert_eq!(is_found, !is_known, "{origin:?}");
        let whole = copy.check_all().unwrap();
        assert_eq!((whole.totals(), copy.findings().len()), (live.totals(), usize::from(!is_known)));
        // The exchange's own rows say which was first.
        let options = options(NOW, None);
        let strict =
            batzen_auditor::audit::audit(&copy.store, &copy.subject, &options, &Progress::default()).unwrap();
        let is_found = strict.faults().any(|finding| finding.rule == Rule::ReserveOrigin);
        assert_eq!(is_found, origin != account(2), "{origin:?}");
    }
}

#[test]
fn several_changes_of_a_row_count_once() {
    let copy = Copy::new();
    let mut live = copy.live();
    let ((credit_key, credit), (key, half), (_, right)) = (credit(), reserve(250), reserve(500));
    let changes = vec![
        change::<Reserves>(&key, None, Some(&half)),
        change::<ReservesIn>(&credit_key, None, Some(&credit)),
        change::<Reserves>(&key, Some(&half), Some(&right)),
    ];
    let position = CopyPosition { next: 1, snapshots: 0 };
    live.apply(changes, position, NOW).unwrap();
    assert_eq!(live.totals().sheet(&copy.subject).reserves.units, 500);
}

/// From 257 rows on, a reserve's sums are kept, and the rows are not read again.
#[test]
fn the_sums_of_a_long_history_are_gone_on_from() {
    let (mut copy, mut live) = Copy::with_results();
    let credits: Vec<_> =
        (1..=300).map(|bank_row| (ReserveInKey { bank_row, ..credit().0 }, credit().1)).collect();
    let (key, row) = reserve(300 * 500);
    let mut changes = vec![change::<Reserves>(&key, None, Some(&row))];
    changes.extend(credits.iter().map(|(key, row)| change::<ReservesIn>(key, None, Some(row))));
    copy.apply(&mut live, changes);
    let kept = copy.store.all::<AuditReserveSums>().unwrap();
    assert_eq!((kept[0].row.entries, kept[0].row.into, kept[0].row.out), (300, 150_000, 0));

    // One more, with a balance that is wrong by one.
    let mut live = copy.live();
    let more = (ReserveInKey { bank_row: 301, ..credit().0 }, credit().1);
    let wrong = reserve(301 * 500 + 1).1;
    copy.apply(
        &mut live,
        vec![
            change::<Reserves>(&key, Some(&row), Some(&wrong)),
            change::<ReservesIn>(&more.0, None, Some(&more.1)),
        ],
    );
    let found = copy.one("reserve-balance");
    assert_eq!((found.finding.exchange, found.finding.auditor), (150_501, 150_500));

    // It is put right, and a check of all rows has the same sums.
    let right = reserve(301 * 500).1;
    copy.apply(&mut live, vec![change::<Reserves>(&key, Some(&wrong), Some(&right))]);
    assert!(copy.one("reserve-balance").row.resolved.is_some());
    let before = copy.store.all::<AuditReserveSums>().unwrap();
    copy.check_all().unwrap();
    let after = copy.store.all::<AuditReserveSums>().unwrap();
    assert_eq!(before[0].row, after[0].row);
    assert_eq!(after[0].row.entries, 301);
}

#[test]
fn what_came_due_after_the_copy_was_complete_is_not_overdue() {
    let (mut copy, mut live) = Copy::with_results();
    let ((credit_key, credit), (reserve_key, reserve)) = (credit(), reserve(500));
    let changes = vec![change::<ReservesIn>(&credit_key, None, Some(&credit))];
    let changes = [changes, vec![change::<Reserves>(&reserve_key, None, Some(&reserve))]].concat();
    copy.apply(&mut live, changes);
    let days = batzen_protocol::Duration::from_days;
    let now = reserve.expiration.saturating_add(days(3));
    let mut compare = |copied| {
        let options = options(now, Some(copied));
        let outcome = live.compare(&options, Asked::default(), &Progress::default()).unwrap();
        outcome.faults().any(|finding| finding.rule == Rule::ReserveNotClosed)
    };
    // The auditor was away: the exchange may have closed the reserve in time.
    assert!(!compare(NOW));
    assert!(!compare(reserve.expiration));
    assert!(compare(now));
    // A copy does not say of itself that it is new.
    assert!(!live.report(now).unwrap().faults().any(|finding| finding.rule == Rule::ReserveNotClosed));
}
