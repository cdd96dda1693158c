//! Rules G1 to G5 and F5, and the acceptance scenarios of the workers.

use batzen_crypto::HashCode;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{
    Aggregate, Aggregated, Answer, Command, ExecuteDrain, Refusal, TransferFailed, TransferRetry,
    TransfersDone, Trigger,
};
use batzen_protocol::Money;
use batzen_tables::exchange::{Aggregates, DepositKey, DrainRow, Drains, Prepared, WtidKey};

use crate::rules::world::*;

/// A world where new coins of denomination 1 (deposit fee 0.1) make deposits of any amount.
struct Shop {
    world: World,
    coins: u8,
}

impl Shop {
    fn new() -> Self {
        let world = World::new();
        world.fund(99, 99, "2000");
        Self { world, coins: 0 }
    }

    /// A deposit at merchant `merchant_n` into account `account_n`; the wire deadline is `due_s` from now.
    fn pay(&mut self, merchant_n: u8, account_n: u8, amount: &str, due_s: u64) -> DepositKey {
        self.coins += 1;
        let now_s = self.world.now().as_secs().unwrap() - T0;
        self.world.ok(withdraw(99, &[(self.coins, 1)], false));
        let request =
            deposit(&[(self.coins, 1, amount)], (merchant_n, self.coins, account_n), (now_s, now_s + due_s));
        self.world.ok(Command::Deposit(request));
        deposit_key(self.coins, merchant_n, self.coins)
    }

    /// Runs aggregator and transfer worker. Returns what the bank shows, by account number.
    fn bank(&mut self) -> Vec<(u8, Money)> {
        self.world.aggregate_all();
        let accounts: Vec<String> = (0..100).map(payto).collect();
        let mut sent: Vec<(u8, Money)> = self
            .world
            .transfer_all()
            .into_iter()
            .map(|(uri, amount)| {
                let n = accounts.iter().position(|account| *account == uri).unwrap();
                (u8::try_from(n).unwrap(), amount)
            })
            .collect();
        sent.sort_unstable();
        sent
    }
}

const B: u8 = 2;
const A: u8 = 1;

#[test]
fn scenario_single_double_and_separate_targets() {
    let mut shop = Shop::new();
    assert_eq!(shop.bank(), []);
    shop.pay(B, 42, "1", 0);
    assert_eq!(shop.bank(), [(42, m("0.89"))]);
    shop.pay(B, 42, "1", 0);
    shop.pay(B, 42, "1", 0);
    assert_eq!(shop.bank(), [(42, m("1.79"))]);
    shop.pay(B, 4, "1", 0);
    shop.pay(B, 5, "1", 0);
    shop.pay(A, 4, "1", 0);
    assert_eq!(shop.bank(), [(4, m("0.89")), (4, m("0.89")), (5, m("0.89"))]);
}

#[test]
fn scenario_deadlines() {
    let mut shop = Shop::new();
    shop.pay(B, 42, "0.2", 5);
    shop.pay(B, 42, "0.2", 5);
    assert_eq!(shop.bank(), []);
    shop.world.advance(5);
    assert_eq!(shop.bank(), [(42, m("0.19"))]);
    shop.pay(B, 42, "0.2", 10);
    shop.pay(B, 42, "0.2", 5);
    assert_eq!(shop.bank(), []);
    shop.world.advance(5);
    assert_eq!(shop.bank(), [(42, m("0.19"))], "deposits that are not due are included");
    shop.world.advance(5);
    assert_eq!(shop.bank(), []);
}

#[test]
fn scenario_tiny_amounts_wait() {
    let mut shop = Shop::new();
    for (amount, transient) in
        [("0.102", "0.002"), ("0.102", "0.004"), ("0.102", "0.006"), ("0.102", "0.008")]
    {
        shop.pay(B, 42, amount, 0);
        assert_eq!(shop.bank(), []);
        assert_eq!(shop.world.totals().transient, m(transient));
    }
    shop.pay(B, 42, "0.112", 0);
    assert_eq!(shop.bank(), [(42, m("0.01"))]);
    shop.pay(B, 42, "0.109", 0);
    assert_eq!(shop.bank(), []);
    shop.pay(B, 42, "0.119", 0);
    assert_eq!(shop.bank(), [(42, m("0.01"))]);
    assert_eq!(shop.world.totals().income.rounding, m("0.008"));
    shop.pay(B, 42, "0.122", 0);
    assert_eq!(shop.bank(), [(42, m("0.01"))], "the remainder was not carried over");
}

#[test]
fn scenario_tiny_amounts_with_deadlines() {
    let mut shop = Shop::new();
    shop.pay(B, 42, "0.109", 5);
    assert_eq!(shop.bank(), []);
    shop.pay(B, 42, "0.109", 5);
    assert_eq!(shop.bank(), []);
    shop.pay(B, 42, "0.122", 0);
    assert_eq!(shop.bank(), [(42, m("0.03"))]);
    shop.pay(B, 42, "0.104", 5);
    assert_eq!(shop.bank(), []);
    shop.pay(B, 42, "0.105", 5);
    assert_eq!(shop.bank(), []);
    shop.pay(B, 42, "0.112", 0);
    assert_eq!(shop.bank(), [(42, m("0.01"))]);
}

#[test]
fn refunds_lower_the_transfer_and_a_refund_window_keeps_a_deposit_out() {
    let mut shop = Shop::new();
    let partly = shop.pay(B, 42, "3", 10);
    let wholly = shop.pay(B, 42, "4", 10);
    let world = &shop.world;
    let refund_of = |key: &DepositKey, amount: &str| {
        let n = *key.coin_pub.as_bytes().last().unwrap();
        world.ok(refund((n, B, n), 1, amount))
    };
    refund_of(&partly, "1");
    refund_of(&wholly, "4");
    // Another coin may still be refunded for a while. Its deposit is left out although another deposit for
    // the same target is due.
    shop.coins += 1;
    let late = deposit(&[(shop.coins, 1, "5")], (B, shop.coins, 42), (60, 100));
    shop.world.ok(withdraw(99, &[(shop.coins, 1)], false));
    shop.world.ok(Command::Deposit(late));
    shop.world.advance(10);
    assert_eq!(shop.bank(), [(42, m("1.89"))]);
    let wtid = read::deposit(&shop.world.store, &partly).unwrap().unwrap().wtid.unwrap();
    let transfer = read::transfer(&shop.world.store, &shop.world.denoms, wtid).unwrap().unwrap();
    assert_eq!(transfer.deposits.len(), 2);
    assert_eq!((transfer.wire_out.amount, transfer.wire_out.wire_fee), (m("1.89"), m("0.01")));
    let status = read::deposit_status(&shop.world.store, &shop.world.denoms, &wholly).unwrap().unwrap();
    assert_eq!(status.transfer.unwrap().amount, m("1.89"));
    shop.world.advance(90);
    assert_eq!(shop.bank(), [(42, m("4.89"))]);
    assert_eq!(shop.world.totals().income.deposit, m("0.2"));
}

#[test]
fn a_deposit_fee_above_the_remaining_contribution_is_waived() {
    let mut shop = Shop::new();
    let key = shop.pay(B, 42, "1", 10);
    let n = *key.coin_pub.as_bytes().last().unwrap();
    shop.world.ok(refund((n, B, n), 1, "0.95"));
    shop.world.advance(10);
    assert_eq!(shop.bank(), []);
    let totals = shop.world.totals();
    assert_eq!((totals.transient, totals.income.deposit), (sum("0"), sum("0.05")));
    // Together with other deposits, the fee is taken from the total.
    let key = shop.pay(B, 7, "1", 10);
    shop.pay(B, 7, "1", 10);
    let n = *key.coin_pub.as_bytes().last().unwrap();
    shop.world.ok(refund((n, B, n), 1, "0.95"));
    shop.world.advance(10);
    assert_eq!(shop.bank(), [(7, m("0.84"))]);
}

#[test]
fn an_aggregation_depends_only_on_rows() {
    let mut shop = Shop::new();
    shop.pay(B, 42, "1", 50);
    shop.pay(B, 43, "1", 0);
    shop.pay(A, 42, "1", 0);
    let run = |shop: &Shop, aggregate: Aggregate| {
        let Answer::Aggregate(aggregated) = shop.world.ok(Command::Aggregate(aggregate)) else { panic!() };
        aggregated
    };
    assert_eq!(
        run(&shop, aggregate(B, 42, 1)),
        Aggregated::Nothing,
        "due deposits of other targets do not count"
    );
    assert_eq!(run(&shop, aggregate(B, 41, 1)), Aggregated::Nothing);
    let late = deposit(&[(50, 1, "5")], (B, 50, 42), (60, 100));
    shop.world.ok(withdraw(99, &[(50, 1)], false));
    shop.world.ok(Command::Deposit(late));
    shop.pay(B, 42, "1", 0);
    let world = &shop.world;
    let foreign = Aggregate { method: "iban".to_owned(), ..aggregate(B, 42, 1) };
    assert_eq!(world.refused(Command::Aggregate(foreign)), Refusal::TargetMismatch);
    // Refundable deposits are left out, and so are deposits that were aggregated before, even in the same
    // batch.
    let twice = [
        Command::Aggregate(aggregate(B, 42, 1)),
        Command::Aggregate(aggregate(B, 42, 2)),
        refund((4, B, 4), 1, "0.5"),
        refund((50, B, 50), 1, "0.5"),
    ];
    let verdicts = world.batch(&twice);
    let prepared = Aggregated::Prepared { taken: 2, amount: m("1.79") };
    assert_eq!(verdicts[0], Ok(Answer::Aggregate(prepared)));
    assert_eq!(verdicts[1], Ok(Answer::Aggregate(Aggregated::Nothing)));
    assert_eq!(verdicts[2], Err(Refusal::DepositPaid), "a refund and an aggregation never both happen");
    assert!(verdicts[3].is_ok());
    // Each identifier is used only once.
    shop.pay(B, 42, "1", 0);
    let again = Aggregate { trigger: Trigger::Continued, ..aggregate(B, 42, 1) };
    assert_eq!(shop.world.refused(Command::Aggregate(again)), Refusal::WtidTaken);
    shop.world.totals();
}

#[test]
fn a_deposit_of_the_same_batch_is_aggregated() {
    let shop = Shop::new();
    shop.world.ok(withdraw(99, &[(1, 1), (2, 1)], true));
    let now_s = shop.world.now().as_secs().unwrap() - T0;
    let pay = |n| Command::Deposit(deposit(&[(n, 1, "1")], (B, n, 42), (now_s, now_s)));
    let verdicts = shop.world.batch(&[pay(1), Command::Aggregate(aggregate(B, 42, 1)), pay(2)]);
    let prepared = Aggregated::Prepared { taken: 1, amount: m("0.89") };
    assert_eq!(verdicts[1], Ok(Answer::Aggregate(prepared)));
    assert_eq!(read::open_deposits(&shop.world.store, &target(B, 42), shop.world.now(), 9).unwrap(), 1);
    shop.world.totals();
}

#[test]
fn a_refund_before_the_aggregation_in_one_batch_counts() {
    let mut shop = Shop::new();
    shop.pay(B, 42, "1", 0);
    let verdicts = shop.world.batch(&[refund((1, B, 1), 1, "0.5"), Command::Aggregate(aggregate(B, 42, 1))]);
    let prepared = Aggregated::Prepared { taken: 1, amount: m("0.39") };
    assert_eq!(verdicts[1], Ok(Answer::Aggregate(prepared)));
    shop.world.totals();
}

#[test]
fn a_large_unit_is_aggregated_in_parts_under_one_identifier() {
    let mut shop = Shop::new();
    for _ in 0..25 {
        shop.pay(B, 42, "1", 0);
    }
    let part = |complete, wtid_n| Aggregate { deposits_max: 10, complete, ..aggregate(B, 42, wtid_n) };
    let outcome = shop.world.ok(Command::Aggregate(part(false, 1)));
    let transient = Aggregated::Transient { taken: 10, total: m("9"), more: true };
    assert_eq!(outcome, Answer::Aggregate(transient));
    // The rest is paid under the same identifier.
    let prepared = Aggregated::Prepared { taken: 5, amount: m("22.49") };
    assert_eq!(shop.world.aggregate_target(target(B, 42), 10), prepared);
    assert_eq!(read::next_ready(&shop.world.store, None).unwrap(), None);
    assert_eq!(shop.world.store.count::<Aggregates>().unwrap(), 0);
    let transfer = read::transfer(&shop.world.store, &shop.world.denoms, wtid(1)).unwrap().unwrap();
    assert_eq!(transfer.deposits.len(), 25);
    assert_eq!(shop.bank(), [(42, m("22.49"))]);
    // A transfer does not have to wait for the rest.
    for _ in 0..12 {
        shop.pay(B, 42, "1", 0);
    }
    let outcome = shop.world.ok(Command::Aggregate(part(true, 2)));
    assert_eq!(outcome, Answer::Aggregate(Aggregated::Prepared { taken: 10, amount: m("8.99") }));
    assert_eq!(shop.bank(), [(42, m("1.79")), (42, m("8.99"))]);
}

#[test]
fn without_a_wire_fee_deposits_wait() {
    let mut shop = Shop::new();
    shop.pay(B, 42, "1", 0);
    shop.world.advance(5_000);
    assert_eq!(shop.world.refused(Command::Aggregate(aggregate(B, 42, 1))), Refusal::WireFeeMissing);
    assert_eq!(shop.world.due_targets(shop.world.now()), [target(B, 42)]);
}

#[test]
fn the_queue_is_read_page_by_page() {
    let mut shop = Shop::new();
    for _ in 0..100 {
        shop.pay(B, 42, "1", 0);
    }
    shop.world.advance(1);
    shop.pay(B, 43, "1", 0);
    shop.pay(B, 42, "1", 1);
    let look =
        |from: &read::DuePosition| read::due_targets(&shop.world.store, shop.world.now(), from, 60).unwrap();
    let (targets, next) = look(&Default::default());
    assert_eq!(targets, [target(B, 42)], "each target once");
    let (targets, next) = look(&next.unwrap());
    assert_eq!(targets, [target(B, 42), target(B, 43)], "most urgent first, and nothing that is not due");
    assert_eq!(next, None);
    let count = |max| read::open_deposits(&shop.world.store, &target(B, 42), shop.world.now(), max).unwrap();
    assert_eq!(
        (count(50), count(500)),
        (50, 101),
        "deposits that are not due count if they cannot be refunded any more"
    );
}

#[test]
fn transfers_complete_fail_and_are_retried() {
    let mut shop = Shop::new();
    for account in 42..45 {
        shop.pay(B, account, "1", 0);
    }
    shop.world.ok(Command::Aggregate(aggregate(B, 42, 1)));
    let changed = |command| match shop.world.ok(command) {
        Answer::TransfersDone(marked) | Answer::TransferFailed(marked) | Answer::TransferRetry(marked) => {
            marked.changed
        }
        other => panic!("{other:?}"),
    };
    let failed = || Command::TransferFailed(TransferFailed { wtid: wtid(1), reason: "404".to_owned() });
    assert_eq!(
        shop.world.refused(Command::TransfersDone(TransfersDone { wtids: vec![wtid(9)] })),
        Refusal::TransferUnknown
    );
    assert!(changed(failed()));
    assert!(!changed(failed()));
    assert!(read::open_transfers(&shop.world.store, 9).unwrap().is_empty());
    assert_eq!(shop.world.totals().in_flight, m("0.89"));
    assert!(changed(Command::TransferRetry(TransferRetry { wtid: wtid(1) })));
    assert_eq!(read::open_transfers(&shop.world.store, 9).unwrap().len(), 1);
    assert!(changed(Command::TransfersDone(TransfersDone { wtids: vec![wtid(1)] })));
    assert!(!changed(Command::TransfersDone(TransfersDone { wtids: vec![wtid(1)] })));
    assert!(!changed(failed()), "a transfer that the bank accepted cannot fail");
    shop.world.ok(Command::Aggregate(aggregate(B, 43, 2)));
    shop.world.ok(Command::Aggregate(aggregate(B, 44, 3)));
    let page = |wtids: &[u8]| {
        Command::TransfersDone(TransfersDone { wtids: wtids.iter().map(|n| wtid(*n)).collect() })
    };
    assert_eq!(shop.world.refused(page(&[2, 9])), Refusal::TransferUnknown);
    assert_eq!(read::open_transfers(&shop.world.store, 9).unwrap().len(), 2, "all of a page or nothing");
    assert!(changed(page(&[1, 2, 3, 2])) && !changed(page(&[3, 2, 1])));
    assert!(read::open_transfers(&shop.world.store, 9).unwrap().is_empty());
    assert_eq!(shop.world.totals().wired_out, m("2.67"));
}

#[test]
fn profit_is_paid_out_once() {
    let mut shop = Shop::new();
    for _ in 0..5 {
        shop.pay(B, 42, "1", 0);
    }
    shop.bank();
    let fees = shop.world.totals().fees;
    let drain = |n: u8| {
        Command::ExecuteDrain(ExecuteDrain {
            wtid: wtid(n),
            h_payto: h_payto(66),
            account: account(),
            request_uid: HashCode::random(),
        })
    };
    assert_eq!(shop.world.refused(drain(9)), Refusal::TransferUnknown);
    shop.world.insert::<Drains>(
        &WtidKey { wtid: wtid(9) },
        &DrainRow {
            account_section: "exchange-account-1".to_owned(),
            payto_uri: payto(66),
            date: at(0),
            amount: m("0.3"),
            master_sig: sig(1),
            executed: false,
        },
    );
    shop.world.ok(drain(9));
    let Answer::ExecuteDrain(again) = shop.world.ok(drain(9)) else { panic!() };
    assert!(again.repeated);
    assert_eq!(shop.bank(), [(66, m("0.3"))]);
    assert_eq!(shop.world.totals().fees, fees.checked_sub(m("0.3")).unwrap());
    assert_eq!(shop.world.store.count::<Prepared>().unwrap(), 2);
}
