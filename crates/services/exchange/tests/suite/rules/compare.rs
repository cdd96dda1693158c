//! Compares rules and model: the outcomes and the books must be equal, whatever the batches, and the
//! comparison must find bugs that are planted in the rules.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use batzen_engine::{Evidence, Plan, Rules, WorkingSet};
use batzen_exchange::history::balance_of;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{
    Answer, CoinHistoryItem, Command, DenomTerms, ExchangeRules, Refunded, Refusal, ReserveHistoryItem,
};
use batzen_protocol::{Money, MoneySum, Timestamp};
use batzen_store::conformance::random::soak_factor;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{ChangeSet, Store, StoreError, Table};
use batzen_tables::exchange::{self as tables, CoinKey, Coins, DenomSerial, Deposits, Reserves};
use proptest::prelude::*;

use crate::rules::generate::{Op, known_for_ever, limited_config, limited_ops, ops, pay, sent_and_deleted};
use crate::rules::model::{Model, Reason, reason};
use crate::rules::world::{METHOD, World, at, config, denom, denoms, m, refund, withdraw};

pub(super) type Verdicts = Vec<Result<Answer, Reason>>;

/// Runs the steps against the model in batches of these sizes (in turn). Returns what the rules answered and
/// how many commands were executed more than once, or else the first difference.
pub(super) fn check<R>(world: &World<R>, ops: &[Op], sizes: &[usize]) -> Result<(Verdicts, usize), String>
where
    R: Rules<Command = Command, Answer = Answer, Refusal = Refusal>,
{
    let mut model = model_of(world);
    let mut sizes = sizes.iter().copied().cycle();
    let (mut all, mut reruns) = (Vec::new(), 0);
    let mut rest = ops;
    while let Some(first) = rest.first() {
        match first {
            Op::Advance(seconds) => {
                world.advance(*seconds);
                rest = &rest[1..];
                continue;
            }
            Op::Revoke(serial) => {
                world.revoke(*serial);
                model.revoked.insert(*serial);
                rest = &rest[1..];
                continue;
            }
            Op::Do(_) => {}
        }
        let size = sizes.next().unwrap_or(1).max(1);
        let batch: Vec<Command> = rest
            .iter()
            .take(size)
            .map_while(|op| match op {
                Op::Do(command) => Some((**command).clone()),
                _ => None,
            })
            .collect();
        rest = &rest[batch.len()..];
        // A failed assertion of the rules counts as finding a bug.
        let verdicts = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.batch(&batch)))
            .map_err(|_| "an assertion of the rules failed".to_owned())?;
        let verdicts: Verdicts =
            verdicts.into_iter().map(|verdict| verdict.map_err(|refusal| reason(&refusal))).collect();
        let (expected, again) = model.batch(&batch, world.now());
        reruns += again;
        for ((command, verdict), expected) in batch.iter().zip(&verdicts).zip(&expected) {
            if verdict != expected {
                return Err(format!("{command:?}\n  rules: {verdict:?}\n  model: {expected:?}"));
            }
        }
        all.extend(verdicts);
        compare_books(world, &model)?;
    }
    compare_rows(world, &model)?;
    Ok((all, reruns))
}

/// A model with the same denominations and fees.
pub(super) fn model_of<R>(world: &World<R>) -> Model
where
    R: Rules<Command = Command, Answer = Answer, Refusal = Refusal>,
{
    let terms: BTreeMap<u32, DenomTerms> =
        (1..4).map(|serial| (serial, world.denoms.get(DenomSerial(serial)).unwrap())).collect();
    let fees = [(at(0), at(1_500), m("0.01"), m("0.01")), (at(1_500), at(5_000), m("0.02"), m("0.05"))];
    Model::new(terms, world.rules.config.clone(), METHOD, &fees)
}

pub(super) fn compare_books<R>(world: &World<R>, model: &Model) -> Result<(), String>
where
    R: Rules<Command = Command, Answer = Answer, Refusal = Refusal>,
{
    let totals = batzen_exchange::reads::totals::totals(&world.store, &world.denoms)
        .map_err(|error| format!("no balance sheet: {error}"))?;
    if !totals.conserved() {
        return Err(format!("the books do not add up: {totals:?}"));
    }
    let books = [
        totals.wired_in,
        totals.wired_out,
        totals.reserves,
        totals.outstanding,
        totals.pending,
        totals.purses,
        totals.unrevealed_melts,
        totals.fees,
    ];
    let expected = model.books().map(MoneySum::from);
    if books == expected { Ok(()) } else { Err(format!("books: rules {books:?}, model {expected:?}")) }
}

/// Checks that every balance and remainder equals the model's and follows from its own history.
pub(super) fn compare_rows<R>(world: &World<R>, model: &Model) -> Result<(), String>
where
    R: Rules<Command = Command, Answer = Answer, Refusal = Refusal>,
{
    let store = &world.store;
    let coins: BTreeMap<_, _> =
        store.all::<Coins>().unwrap().into_iter().map(|found| (found.key.coin_pub, found.row)).collect();
    let remainders: BTreeMap<_, _> = coins.iter().map(|(key, row)| (*key, row.remaining)).collect();
    if remainders != model.remainders() {
        return Err(format!("coins: rules {remainders:?}, model {:?}", model.remainders()));
    }
    for (coin_pub, row) in coins {
        let value = world.denoms.get(row.denom).unwrap().value;
        let history = read::coin_history(store, &world.denoms, coin_pub).unwrap().unwrap();
        let sum = balance_of(value, history.items.iter().map(CoinHistoryItem::effect));
        if sum != Some(row.remaining) || history.items.is_empty() || row.remaining > value {
            return Err(format!("coin {coin_pub}: {sum:?} by its history, {}", row.remaining));
        }
    }
    let balances: BTreeMap<_, _> = store
        .all::<Reserves>()
        .unwrap()
        .into_iter()
        .map(|found| (found.key.reserve_pub, (found.row.balance, found.row.expiration, found.row.gc)))
        .collect();
    if balances != model.balances() {
        return Err(format!("reserves: rules {balances:?}, model {:?}", model.balances()));
    }
    for (reserve_pub, (balance, ..)) in balances {
        let statement = read::reserve_statement(store, &world.denoms, reserve_pub, None).unwrap().unwrap();
        let sum = balance_of(Money::ZERO, statement.items.iter().map(ReserveHistoryItem::effect));
        if sum != Some(balance) {
            return Err(format!("reserve {reserve_pub}: {sum:?} by its history, {balance}"));
        }
    }
    Ok(())
}

/// Every row of the exchange.
pub(super) fn dump(store: &Store) -> BTreeMap<(&'static str, Vec<u8>), Vec<u8>> {
    let mut rows = BTreeMap::new();
    for table in tables::ALL {
        store
            .backend()
            .scan(table, &mut |record| {
                rows.insert((table.name, record.key), record.row);
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    rows
}

/// Adds steps in front that issue the coins to be spent. The API lets no coins without a signature through.
pub(super) fn with_coins(ops: Vec<Op>) -> Vec<Op> {
    let planchets: Vec<(u8, u32)> = (60..66).map(|n| (n, 1)).collect();
    [crate::rules::world::credits(&[(50, 200, "100", 50, at(0))], 0), withdraw(50, &planchets, true)]
        .into_iter()
        .map(|command| Op::Do(Box::new(command)))
        .chain(ops)
        .collect()
}

/// The same by a customer who is identified.
fn with_coins_of_a_known_customer(ops: Vec<Op>) -> Vec<Op> {
    known_for_ever(50).into_iter().map(|command| Op::Do(Box::new(command))).chain(with_coins(ops)).collect()
}

/// Number of random sequences: ten times as many as any of the planted bugs may need.
const SEQUENCES: u32 = 400;

/// A configuration with so many cases, times `BATZEN_SOAK_FACTOR`.
pub(super) fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { cases: count * u32::try_from(soak_factor()).unwrap(), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(SEQUENCES))]

    #[test]
    fn rules_equal_the_model_in_any_batches(
        ops in ops(1..160).prop_map(with_coins),
        sizes in prop::collection::vec(1usize..24, 1..6),
    ) {
        let single = World::new();
        let (one_by_one, none) = check(&single, &ops, &[1]).map_err(TestCaseError::fail)?;
        prop_assert_eq!(none, 0);
        let batched = World::new();
        let (in_batches, reruns) = check(&batched, &ops, &sizes).map_err(TestCaseError::fail)?;
        // A command that depends on another one of its batch may be answered differently than alone.
        // Otherwise nothing differs.
        if reruns == 0 {
            prop_assert_eq!(one_by_one, in_batches);
            prop_assert_eq!(dump(&single.store), dump(&batched.store));
        }
    }
}

proptest! {
    #![proptest_config(cases(SEQUENCES / 2))]

    #[test]
    fn limits_equal_the_model_in_any_batches(
        ops in limited_ops(1..60).prop_map(with_coins_of_a_known_customer),
        sizes in prop::collection::vec(1usize..24, 1..6),
    ) {
        let limited = || World::with(&denoms(), limited_config(), |rules| rules);
        let single = limited();
        let (one_by_one, _) = check(&single, &ops, &[1]).map_err(TestCaseError::fail)?;
        let batched = limited();
        let (in_batches, reruns) = check(&batched, &ops, &sizes).map_err(TestCaseError::fail)?;
        if reruns == 0 {
            prop_assert_eq!(one_by_one, in_batches);
            prop_assert_eq!(dump(&single.store), dump(&batched.store));
        }
    }
}

/// Words by which the outcomes for limited customers are told apart.
const LIMITED: &str = "KycRequired|OriginOther|KycProcessUnknown|KycWaits|KycChanged|KycSameOfficer|NeedsAnother|Approved|\
    Rejected|Withdrawn|Prepared|PurseMerged|CloseRequested";

/// Words by which all other outcomes are told apart.
const OUTCOMES: &str = "Withdraw(|Credited {|charged: false|problem: Expired|problem: Revoked|problem: NotRevoked|\
    MeltNoZombie|repeated: true|repeated: false|PlanchetsMixed|PlanchetDuplicate|DenominationUnusable|\
    ReserveUnknown|lacks|NonceReuse|charged: true|HistoryUnaffordable|NotDue|Closed {|TargetMismatch|\
    WtidTaken|Insufficient|OtherDenomination|OtherAgeCommitment|OtherDeposit|RefundAboveDeposit|\
    RefundOtherAmount|ContributionBelowFee|ContributionAboveValue|DeadlinesImpossible|CoinDuplicate|\
    CoinUnknown|DepositUnknown|DepositPaid|RefundBelowFee|MeltBelowFee|RcTaken|MeltUnknown|RmsMissing|\
    RevealCostTooHigh|Reveal(Revealed|PlanchetUnknown|Recoup(Recouped|RecoupRefresh(RecoupRefreshed|\
    Transient {|Prepared {|Nothing|TransientOther|TransferUnknown|TransferMarked|SignatureMissing|\
    PurseCreate(|PurseDeposit(|PurseMerge(|PurseDelete(|PurseExpire(NotDue|PurseExpire(Expired|\
    is_new: true|is_new: false|credited: Some|PurseUnknown|PurseExpired|PurseTooLate|PurseFeeTooLow|\
    PurseDeleted|PurseDecided|PurseNotFull|PurseConflict|PurseMergeConflict|PurseDepositConflict|\
    ContractConflict|PurseChanged|PurseUnaffordable|ReserveOpen(|OpenTooLittle|CloseRequested|\
    CloseTargetUnknown|CloseReserve(Empty|WireFeeMissing";

#[test]
fn limited_customers_reach_every_outcome() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..60 {
        let steps = limited_ops(150..151).new_tree(&mut runner).unwrap().current();
        let steps = with_coins_of_a_known_customer(steps);
        let world = World::with(&denoms(), limited_config(), |rules| rules);
        for verdict in check(&world, &steps, &[1, 7, 30]).unwrap().0 {
            let text = match verdict {
                Ok(outcome) => format!("{outcome:?}"),
                Err(reason) => reason,
            };
            for word in LIMITED.split('|').filter(|word| text.contains(word)) {
                *seen.entry(word).or_default() += 1;
            }
        }
    }
    assert_eq!(seen.len(), 13, "{seen:?}");
}

#[test]
fn the_generator_reaches_every_outcome() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut reruns = 0;
    for _ in 0..60 {
        let ops = with_coins(ops(250..251).new_tree(&mut runner).unwrap().current());
        let (verdicts, again) = check(&World::new(), &ops, &[1, 7, 30]).unwrap();
        reruns += again;
        for verdict in verdicts {
            let text = match verdict {
                Ok(outcome) => format!("{outcome:?}"),
                Err(reason) => reason,
            };
            let words: Vec<&str> = OUTCOMES.split('|').filter(|word| text.contains(word)).collect();
            assert!(!words.is_empty(), "an outcome that is not counted: {text}");
            for word in words {
                *seen.entry(word.to_owned()).or_default() += 1;
            }
        }
    }
    eprintln!("{seen:#?}, {reruns} reruns");
    assert!(seen.len() == 79, "only {} outcomes were reached: {seen:?}", seen.len());
    assert!(reruns > 0);
}

#[test]
fn the_embedded_store_holds_the_same_rows_also_after_it_is_opened_again() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let open = |path: &std::path::Path| {
        Store::new(EmbeddedStore::open(path, tables::ALL, Options::default()).unwrap())
    };
    for _ in 0..4 {
        let steps = with_coins(ops(200..201).new_tree(&mut runner).unwrap().current());
        let memory = World::new();
        let (expected, _) = check(&memory, &steps, &[20]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let world = World::on(open(directory.path()), &denoms(), config(), |rules| rules);
        let (verdicts, _) = check(&world, &steps, &[20]).unwrap();
        assert_eq!(verdicts, expected);
        assert_eq!(dump(&world.store), dump(&memory.store));
        let totals = world.totals();
        drop(world);
        let store = open(directory.path());
        assert_eq!(dump(&store), dump(&memory.store));
        let denoms = batzen_exchange::rules::DenomTable::load(&store).unwrap();
        assert_eq!(batzen_exchange::reads::totals::totals(&store, &denoms).unwrap(), totals);
    }
}

// --- Planted bugs

/// A planted bug.
#[derive(Clone, Copy, Debug)]
enum Bug {
    /// When a deposit is refunded completely, the coin is credited with the deposit fee twice.
    FeeTwice,
    /// A withdrawal does not charge its fee.
    FeeForgotten,
    /// A second transfer into a reserve is recorded but not added.
    CreditLost,
    /// A repeated deposit is charged again.
    RepetitionCharged,
    /// Aggregation ignores that a deposit was refunded in part.
    RefundIgnored,
    /// A deleted purse keeps the deposit fee.
    PurseFeeKept,
}

const BUGS: [Bug; 6] = [
    Bug::FeeTwice,
    Bug::FeeForgotten,
    Bug::CreditLost,
    Bug::RepetitionCharged,
    Bug::RefundIgnored,
    Bug::PurseFeeKept,
];

/// The rules with a planted bug.
struct Planted {
    rules: ExchangeRules,
    bug: Bug,
}

impl Rules for Planted {
    type Command = Command;
    type Answer = Answer;
    type Refusal = Refusal;

    fn plan(&self, command: &Command, plan: &mut Plan) {
        self.rules.plan(command, plan);
    }

    fn execute(&self, rows: &mut WorkingSet, command: &Command, now: Timestamp) -> Result<Answer, Refusal> {
        let before = match (self.bug, command) {
            (Bug::CreditLost, Command::Credits(credits)) => {
                let key = tables::ReserveKey { reserve_pub: credits.credits[0].reserve_pub };
                rows.get::<Reserves>(&key).cloned()
            }
            _ => None,
        };
        if let (Bug::RefundIgnored, Command::Aggregate(aggregate)) = (self.bug, command) {
            let (from, _) = aggregate.target.range(aggregate.until);
            let found = rows.range::<Deposits>(Deposits::BY_TARGET, &from);
            let found: Vec<_> = found.into_iter().map(|(key, row)| (key.clone(), row.clone())).collect();
            for (key, row) in found {
                rows.update::<Deposits>(&key, tables::DepositRow { refunded: Money::ZERO, ..row });
            }
        }
        let outcome = self.rules.execute(rows, command, now)?;
        match (self.bug, command, &outcome) {
            (Bug::FeeTwice, Command::Refund(command), Answer::Refund(Refunded { repeated: false })) => {
                let deposit = rows.get::<Deposits>(&command.key.deposit()).unwrap();
                if deposit.refunded == deposit.amount {
                    let key = CoinKey { coin_pub: command.key.coin_pub };
                    let row = rows.get::<Coins>(&key).unwrap().clone();
                    let fee = self.rules.denoms.get(row.denom).unwrap().fee_deposit;
                    let remaining = row.remaining.checked_add(fee).unwrap();
                    rows.update::<Coins>(&key, tables::CoinRow { remaining, ..row });
                }
            }
            (Bug::FeeForgotten, Command::Withdraw(command), Answer::Withdraw(withdrawn))
                if !withdrawn.repeated =>
            {
                let key = tables::ReserveKey { reserve_pub: command.reserve_pub };
                let row = rows.get::<Reserves>(&key).unwrap().clone();
                let fee = self.rules.denoms.get(command.planchets[0].denom).unwrap().fee_withdraw;
                let balance = row.balance.checked_add(fee).unwrap();
                rows.update::<Reserves>(&key, tables::ReserveRow { balance, ..row });
            }
            (Bug::CreditLost, Command::Credits(credits), _) => {
                if let Some(row) = before {
                    let key = tables::ReserveKey { reserve_pub: credits.credits[0].reserve_pub };
                    rows.update::<Reserves>(&key, row);
                }
            }
            (Bug::RepetitionCharged, Command::Deposit(command), Answer::Deposit(deposited))
                if deposited.coins[0].repeated =>
            {
                let key = CoinKey { coin_pub: command.coins[0].coin.coin_pub };
                let row = rows.get::<Coins>(&key).unwrap().clone();
                let remaining =
                    row.remaining.checked_sub(command.coins[0].contribution).unwrap_or(row.remaining);
                rows.update::<Coins>(&key, tables::CoinRow { remaining, ..row });
            }
            (Bug::PurseFeeKept, Command::PurseDelete(command), _) => {
                let key = CoinKey { coin_pub: command.coins[0] };
                let row = rows.get::<Coins>(&key).unwrap().clone();
                let fee = self.rules.denoms.get(row.denom).unwrap().fee_deposit;
                let remaining = row.remaining.checked_sub(fee).unwrap();
                rows.update::<Coins>(&key, tables::CoinRow { remaining, ..row });
            }
            _ => {}
        }
        Ok(outcome)
    }

    fn committed(&self, changes: &ChangeSet) {
        self.rules.committed(changes);
    }

    fn needs_evidence(&self, refusal: &Refusal) -> bool {
        self.rules.needs_evidence(refusal)
    }

    fn evidence(
        &self,
        command: &Command,
        refusal: &mut Refusal,
        store: &Store,
    ) -> Result<Evidence, StoreError> {
        self.rules.evidence(command, refusal, store)
    }
}

/// A sequence that reveals each of the bugs.
fn revealing_sequence() -> Vec<Op> {
    let credit = |bank_row| crate::rules::world::credits(&[(1, bank_row, "30", 1, at(0))], bank_row);
    let aggregate = Command::Aggregate(batzen_exchange::rules::Aggregate {
        target: crate::rules::world::target(0, 0),
        method: METHOD.to_owned(),
        account: crate::rules::world::account(),
        until: at(0),
        deposits_max: 1_000,
        trigger: batzen_exchange::rules::Trigger::Due,
        complete: false,
        wtid: crate::rules::world::wtid(1),
        request_uid: crate::rules::world::hash(9, 9),
        payee: None,
    });
    let [create, delete] = sent_and_deleted(3, "5");
    [
        credit(1),
        withdraw(1, &[(0, 1), (3, 1)], false),
        credit(2),
        create,
        delete,
        Command::Deposit(pay(0, "4", 0, (100, 100))),
        Command::Deposit(pay(0, "4", 0, (100, 100))),
        refund((0, 0, 0), 1, "4"),
        Command::Deposit(pay(0, "5", 1, (0, 0))),
        refund((0, 0, 1), 1, "2"),
        aggregate,
    ]
    .into_iter()
    .map(|command| Op::Do(Box::new(command)))
    .collect()
}

#[test]
fn planted_bugs_are_found() {
    let ops = revealing_sequence();
    check(&World::new(), &ops, &[1]).unwrap();
    check(&World::new(), &ops, &[100]).unwrap();
    for bug in BUGS {
        let world = World::with(&denoms(), config(), |rules| Planted { rules, bug });
        let found = check(&world, &ops, &[1]);
        assert!(found.is_err(), "{bug:?} was not found");
        let world = World::with(&denoms(), config(), |rules| Planted { rules, bug });
        assert!(check(&world, &ops, &[100]).is_err(), "{bug:?} was not found in one batch");
    }
}

#[test]
fn a_tenth_of_the_random_sequences_finds_each_planted_bug() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    for bug in BUGS {
        let mut runner = TestRunner::deterministic();
        let found = (1..=SEQUENCES / 10).find(|_| {
            let steps = with_coins(ops(1..160).new_tree(&mut runner).unwrap().current());
            let world = World::with(&denoms(), config(), |rules| Planted { rules, bug });
            check(&world, &steps, &[5, 1, 17]).is_err()
        });
        println!("{bug:?} was found by sequence {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[test]
fn created_and_lost_money_shows_in_the_conservation_difference() {
    let difference = |bug| {
        let world = World::with(&denoms(), config(), |rules| Planted { rules, bug });
        for op in revealing_sequence() {
            let Op::Do(command) = op else { continue };
            // A bug may also make the rules refuse a command.
            let _ = world.run(*command);
        }
        world.rules.flow.sums().unwrap().difference()
    };
    assert!(difference(Bug::FeeForgotten) < 0, "a fee that stays in the reserve creates money");
    for bug in [Bug::CreditLost, Bug::RepetitionCharged] {
        assert!(difference(bug) > 0, "{bug:?} loses money");
    }
}

#[test]
fn terms_come_from_rows() {
    let (serial, row) = denom(5, batzen_crypto::Cipher::Rsa, "3", ["0", "0", "0", "0"]);
    let world = World::with(&[(serial, row.clone())], config(), |rules| rules);
    assert_eq!(world.denoms.get(serial), Some(DenomTerms::of(&row)));
    assert_eq!((world.denoms.serial_max(), world.denoms.get(DenomSerial(1))), (5, None));
    assert_eq!(Coins::DEF.id, 10);
}
