//! The acceptance scenarios of aggregation and closing: currency EUR, wire fee 0.01, closing fee 0.01, round
//! unit 0.01, deposit fee 0.1.

use batzen_protocol::Money;
use batzen_tables::exchange::Aggregates;

use crate::workers::world::{EXPIRED, World, m, reserve};

impl World {
    /// Runs aggregator and transfer, and returns what the bank shows since the last call.
    async fn settle(&self, seen: &mut u64) -> Vec<(String, Money)> {
        self.aggregate().await.unwrap();
        self.transfer().await.unwrap();
        self.check().await;
        self.paid_after(seen).await
    }
}

fn to(account: &str, amount: &str) -> (String, Money) {
    (account.to_owned(), m(amount))
}

#[tokio::test]
async fn deposits_become_transfers() {
    let w = World::new().await;
    let mut seen = 0;
    let nothing = Vec::new();
    assert_eq!(w.settle(&mut seen).await, nothing, "nothing to do");

    w.deposit("B", "a1", &["1"], 0).await;
    assert_eq!(w.settle(&mut seen).await, [to("a1", "0.89")]);

    w.deposit("B", "a2", &["1"], 0).await;
    w.deposit("B", "a2", &["1"], 0).await;
    assert_eq!(w.settle(&mut seen).await, [to("a2", "1.79")], "the wire fee is charged once");

    w.deposit("B", "a4", &["1"], 0).await;
    w.deposit("B", "a5", &["1"], 0).await;
    w.deposit("A", "a4", &["1"], 0).await;
    let three = [to("a4", "0.89"), to("a4", "0.89"), to("a5", "0.89")];
    assert_eq!(w.settle(&mut seen).await, three, "neither merchants nor accounts are mixed");

    w.deposit("B", "a6", &["0.2"], 5).await;
    w.deposit("B", "a6", &["0.2"], 5).await;
    assert_eq!(w.settle(&mut seen).await, nothing);
    w.advance(5);
    assert_eq!(w.settle(&mut seen).await, [to("a6", "0.19")]);

    w.deposit("B", "a7", &["0.2"], 10).await;
    w.deposit("B", "a7", &["0.2"], 5).await;
    assert_eq!(w.settle(&mut seen).await, nothing);
    w.advance(5);
    assert_eq!(w.settle(&mut seen).await, [to("a7", "0.19")], "the later one is included");
    w.end().await;
}

#[tokio::test]
async fn small_sums_wait_and_remainders_are_income() {
    let w = World::new().await;
    let mut seen = 0;
    let nothing = Vec::new();
    w.deposit("B", "a1", &["0.102"], 0).await;
    assert_eq!(w.settle(&mut seen).await, nothing);
    assert_eq!(w.totals().transient, m("0.002"));
    let wtid = w.app().core.store.all::<Aggregates>().unwrap()[0].row.wtid;
    w.deposit("B", "a1", &["0.102", "0.102"], 0).await;
    assert_eq!(w.settle(&mut seen).await, nothing);
    w.deposit("B", "a1", &["0.102"], 0).await;
    assert_eq!(w.settle(&mut seen).await, nothing);
    assert_eq!(w.totals().transient, m("0.008"));
    w.deposit("B", "a1", &["0.112"], 0).await;
    assert_eq!(w.settle(&mut seen).await, [to("a1", "0.01")]);
    assert_eq!(w.outgoing().await[0].wtid, wtid, "the identifier is that of the aggregate's first part");
    assert_eq!(w.app().core.store.count::<Aggregates>().unwrap(), 0);

    w.deposit("B", "a2", &["0.109"], 0).await;
    assert_eq!(w.settle(&mut seen).await, nothing);
    w.deposit("B", "a2", &["0.119"], 0).await;
    assert_eq!(w.settle(&mut seen).await, [to("a2", "0.01")]);
    assert_eq!(w.totals().income.rounding, m("0.008"));
    w.deposit("B", "a2", &["0.122"], 0).await;
    assert_eq!(w.settle(&mut seen).await, [to("a2", "0.01")], "the remainder was not carried over");

    for (account, first, second, last) in
        [("a3", "0.109", "0.109", "0.122"), ("a4", "0.104", "0.105", "0.112")]
    {
        w.deposit("B", account, &[first], 5).await;
        assert_eq!(w.settle(&mut seen).await, nothing);
        w.deposit("B", account, &[second], 5).await;
        assert_eq!(w.settle(&mut seen).await, nothing);
        w.deposit("B", account, &[last], 0).await;
        let amount = if account == "a3" { "0.03" } else { "0.01" };
        assert_eq!(w.settle(&mut seen).await, [to(account, amount)]);
    }
    w.end().await;
}

#[tokio::test]
async fn an_expired_reserve_goes_back() {
    let w = World::new().await;
    w.add_incoming(reserve(1), "5", "42").await;
    w.wirewatch().await.unwrap();
    assert_eq!(w.close().await.unwrap().done, 0, "not expired");
    w.advance(EXPIRED);
    assert_eq!(w.close().await.unwrap().done, 1);
    assert_eq!(w.balance(reserve(1)), Some(Money::ZERO));
    assert_eq!(w.transfer().await.unwrap().done, 1);
    assert_eq!(w.paid().await, [to("42", "4.99")]);
    assert_eq!(
        w.outgoing().await[0].wtid.as_bytes(),
        reserve(1).as_bytes(),
        "the reserve's key is the subject"
    );
    w.end().await;
}
