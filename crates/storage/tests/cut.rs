//! Connections to PostgreSQL are cut in the middle of commits, at every message boundary: what the store answers is what the
//! database has, and it has it once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use batzen_pg_cluster::{Moment, Proxy, Rest, fresh_database, shared};
use batzen_storage::{Service, Sharing, StoreConfig};
use batzen_store::{ChangeSet, CommitOutcome, Store, StoreError, Table, TableDef, record};

record! {
    /// Names a pot.
    pub key struct PotKey {
        /// Its number.
        pub pot: u32,
    }
}
record! {
    /// A pot.
    pub struct PotRow {
        /// What is in it.
        pub content: u64,
    }
}
/// Pots, which change.
struct Pots;
impl Table for Pots {
    const DEF: &'static TableDef = &TableDef::of::<Self>(900, "pots");
    type Key = PotKey;
    type Row = PotRow;
}

record! {
    /// Names what was put into a pot.
    pub key struct SlipKey {
        /// The pot.
        pub pot: u32,
        /// The number of the payment.
        pub number: u64,
    }
}
record! {
    /// What was put into a pot.
    pub struct SlipRow {
        /// What was in it afterwards.
        pub content: u64,
    }
}
/// Slips, which only come.
struct Slips;
impl Table for Slips {
    const DEF: &'static TableDef = &TableDef::of::<Self>(901, "slips");
    type Key = SlipKey;
    type Row = SlipRow;
}

const TEST: Service = Service { schema: "cuts", tables: &[Pots::DEF, Slips::DEF], sharing: Sharing::Shared };

/// A store behind a proxy, and the same one without.
struct Fixture {
    proxy: Proxy,
    store: Store,
    /// Not through the proxy: what is really there.
    truth: Store,
    paid: u64,
}

impl Fixture {
    fn new() -> Self {
        let url = fresh_database();
        let database = url.rsplit('/').next().unwrap();
        let proxy = Proxy::start(shared().port()).unwrap();
        let direct = StoreConfig::Postgres { url: url.clone() };
        direct.prepare(&TEST).unwrap();
        let cut = StoreConfig::Postgres { url: shared().url_at(proxy.port(), database) };
        let (store, truth) = (cut.open(&TEST, 1).unwrap(), direct.open(&TEST, 1).unwrap());
        let mut changes = ChangeSet::new();
        changes.insert::<Pots>(&PotKey { pot: 1 }, &PotRow { content: 0 });
        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
        Self { proxy, store, truth, paid: 0 }
    }

    /// Puts one into the pot, as a lane does it: reads, commits, and begins again if it was overtaken.
    fn pay(&mut self) -> Result<(), StoreError> {
        let (pot, slip) = (PotKey { pot: 1 }, SlipKey { pot: 1, number: self.paid });
        for _ in 0..10 {
            let read = self.store.get::<Pots>(&pot)?.unwrap();
            let content = read.row.content + 1;
            let mut changes = ChangeSet::new();
            changes.update_read::<Pots>(&pot, (&read.row, Some(read.version)), &PotRow { content });
            changes.insert::<Slips>(&slip, &SlipRow { content });
            match self.store.commit(&changes) {
                Ok(CommitOutcome::Committed) => return Ok(()),
                // Somebody else's row: there is nobody else, so it would be our own.
                Ok(CommitOutcome::Conflict(rows)) => panic!("paid twice: {rows:?}"),
                Err(StoreError::Stale { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        panic!("overtaken ten times, by nobody");
    }

    /// Pays, and looks whether that has happened exactly as it was answered.
    fn pay_and_check(&mut self, what: &str) {
        let answer = self.pay();
        let there = self.truth.get::<Pots>(&PotKey { pot: 1 }).unwrap().unwrap().row.content;
        let slips = self.truth.count::<Slips>().unwrap();
        self.paid += 1;
        assert!(answer.is_ok(), "{what}: {answer:?}");
        assert_eq!((there, slips), (self.paid, self.paid), "{what}: not once");
    }

    /// Cuts a commit at this moment; whether the commit was long enough for that.
    fn cut(&mut self, moment: Moment, rest: Rest) -> bool {
        let cuts = self.proxy.cuts();
        self.proxy.cut(moment, rest);
        self.pay_and_check(&format!("{moment:?}, {rest:?}"));
        if self.proxy.take_back() || self.proxy.cuts() == cuts {
            return false;
        }
        if rest == Rest::Late {
            self.proxy.release();
            // Whoever is late finds that it is fenced off, now and afterwards.
            self.pay_and_check("after what was late");
        }
        true
    }
}

#[test]
fn a_commit_cut_on_its_way_to_the_server_is_resolved() {
    let mut fixture = Fixture::new();
    let count =
        (0..200).take_while(|count| fixture.cut(Moment::MessagesToServer(*count), Rest::Lost)).count();
    println!("{count} boundaries");
    assert!(count > 5 && count < 200, "{count} messages");
}

#[test]
fn a_commit_cut_on_its_way_back_is_resolved() {
    let mut fixture = Fixture::new();
    let count =
        (0..200).take_while(|count| fixture.cut(Moment::MessagesFromServer(*count), Rest::Lost)).count();
    println!("{count} boundaries");
    assert!(count > 5 && count < 200, "{count} messages");
    assert!(fixture.cut(Moment::CommitSeen, Rest::Lost));
}

#[test]
fn what_is_still_on_its_way_when_the_commit_is_resolved_is_fenced_off() {
    let mut fixture = Fixture::new();
    let count =
        (0..200).take_while(|count| fixture.cut(Moment::MessagesToServer(*count), Rest::Late)).count();
    assert!(count > 5 && count < 200, "{count} messages");
}

#[test]
fn messages_that_are_torn_are_as_lost() {
    let mut fixture = Fixture::new();
    for bytes in (1..400).step_by(37) {
        fixture.cut(Moment::BytesToServer(bytes), Rest::Lost);
        fixture.cut(Moment::BytesFromServer(bytes), Rest::Lost);
    }
}

#[test]
fn a_server_that_stays_away_is_unavailable_and_nothing_is_lost() {
    let mut fixture = Fixture::new();
    fixture.pay_and_check("before");
    fixture.proxy.refuse(true);
    fixture.proxy.cut_all();
    let refused = fixture.pay();
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    fixture.proxy.refuse(false);
    fixture.pay_and_check("after");
}
