//! Cuts connections to PostgreSQL in the middle of commits, at every message boundary. The store's answer
//! must match the database, which must have the commit exactly once.

use batzen_service::storage::{Service, Sharing, StoreConfig};
use batzen_store::{ChangeSet, CommitOutcome, Store, StoreError, Table, record, table};
use batzen_testkit::postgres::{Moment, Proxy, Rest, fresh_database, shared};

record! {
    /// Names a pot.
    pub key struct PotKey {
        /// Its number.
        pub pot: u32,
    }
}
record! {
    pub struct PotRow {
        pub content: u64,
    }
}
table! {
    /// Pots, which are updated.
    Pots(900, "pots"): PotKey => PotRow;
}

record! {
    /// Names a payment into a pot.
    pub key struct SlipKey {
        pub pot: u32,
        /// The number of the payment.
        pub number: u64,
    }
}
record! {
    /// A payment into a pot.
    pub struct SlipRow {
        /// The pot's content afterwards.
        pub content: u64,
    }
}
table! {
    /// Slips, which are only inserted.
    Slips(901, "slips"): SlipKey => SlipRow;
}

const TEST: Service = Service { schema: "cuts", tables: &[Pots::DEF, Slips::DEF], sharing: Sharing::Shared };

/// A store behind a proxy, and a direct connection to the same store.
struct Fixture {
    proxy: Proxy,
    store: Store,
    /// Without the proxy: the real content.
    truth: Store,
    paid: u64,
}

impl Fixture {
    fn new() -> Self {
        let url = fresh_database();
        let database = url.rsplit('/').next().unwrap();
        let proxy = Proxy::start(shared().port()).unwrap();
        let direct = StoreConfig::postgres(url.clone());
        direct.prepare(&TEST).unwrap();
        let cut = StoreConfig::postgres(shared().url_at(proxy.port(), database));
        let (store, truth) = (cut.open(&TEST, 1).unwrap(), direct.open(&TEST, 1).unwrap());
        let mut changes = ChangeSet::new();
        changes.insert::<Pots>(&PotKey { pot: 1 }, &PotRow { content: 0 });
        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
        Self { proxy, store, truth, paid: 0 }
    }

    /// Pays one into the pot as a lane does: reads, commits, and starts over if another commit came first.
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
                // A conflict with our own earlier commit: nobody else writes.
                Ok(CommitOutcome::Conflict(rows)) => panic!("paid twice: {rows:?}"),
                Err(StoreError::Stale { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        panic!("lost ten races without a competitor");
    }

    /// Pays, and checks that the database agrees with the answer.
    fn pay_and_check(&mut self, what: &str) {
        let answer = self.pay();
        let there = self.truth.get::<Pots>(&PotKey { pot: 1 }).unwrap().unwrap().row.content;
        let slips = self.truth.count::<Slips>().unwrap();
        self.paid += 1;
        assert!(answer.is_ok(), "{what}: {answer:?}");
        assert_eq!((there, slips), (self.paid, self.paid), "{what}: not once");
    }

    /// Cuts a commit at this moment. Returns whether the commit was long enough.
    fn cut(&mut self, moment: Moment, rest: Rest) -> bool {
        let cuts = self.proxy.cuts();
        self.proxy.cut(moment, rest);
        self.pay_and_check(&format!("{moment:?}, {rest:?}"));
        if self.proxy.cancel_cut() || self.proxy.cuts() == cuts {
            return false;
        }
        if rest == Rest::Late {
            self.proxy.release();
            // The late commit is fenced off, now and afterwards.
            self.pay_and_check("after the late messages");
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
fn messages_delayed_past_the_resolution_are_fenced_off() {
    let mut fixture = Fixture::new();
    let count =
        (0..200).take_while(|count| fixture.cut(Moment::MessagesToServer(*count), Rest::Late)).count();
    assert!(count > 5 && count < 200, "{count} messages");
}

#[test]
fn torn_messages_count_as_lost() {
    let mut fixture = Fixture::new();
    for bytes in (1..400).step_by(37) {
        fixture.cut(Moment::BytesToServer(bytes), Rest::Lost);
        fixture.cut(Moment::BytesFromServer(bytes), Rest::Lost);
    }
}

#[test]
fn unreachable_server_is_reported_and_nothing_is_lost() {
    let mut fixture = Fixture::new();
    fixture.pay_and_check("before");
    fixture.proxy.refuse(true);
    fixture.proxy.cut_all();
    let refused = fixture.pay();
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    fixture.proxy.refuse(false);
    fixture.pay_and_check("after");
}
