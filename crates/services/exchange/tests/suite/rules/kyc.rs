//! Limits on customers: each rule's own time frame, what counts, and how payouts are held and released.

use batzen_crypto::EddsaPublicKey;
use batzen_crypto::hash::sha512_parts;
use batzen_exchange::reads::{kyc, read};
use batzen_exchange::rules::kyc::{EVENTS_MAX, HOLDS_MAX, requirement_number};
use batzen_exchange::rules::{
    Aggregate, Aggregated, Answer, ClearKycAlert, Command, DecideKyc, KycDecided, KycProvider, KycRule,
    KycRules, KycUserType, LimitedAccount, PurseDeposit, Refusal, RequestClose, RequireKyc, ReservePurse,
    RulesConfig, SubmitKyc, Trigger, Withdraw,
};
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{
    DepositTarget, KycAccountKey, KycAlerts, KycEvent, KycOperation, KycState, KycUsages, PaytoHash,
};

use crate::rules::world::*;

/// The merchant.
const B: u8 = 2;

pub(super) fn rule(operation: KycOperation, checks: &str, threshold: &str, secs: u64) -> KycRule {
    let checks = checks.split(' ').map(str::to_owned).collect();
    KycRule { operation, checks, threshold: m(threshold), timeframe: Duration::from_secs(secs) }
}

pub(super) fn provider(section: &str, checks: &str, cost: u64) -> KycProvider {
    let checks = checks.split(' ').map(str::to_owned).collect();
    KycProvider { section: section.to_owned(), cost, user_type: KycUserType::Individual, checks }
}

fn kyc_rules(rules: Vec<KycRule>) -> KycRules {
    KycRules { rules, providers: vec![provider("id", "name", 5), provider("home", "name address", 9)] }
}

fn world(rules: Vec<KycRule>) -> World {
    World::with(&denoms(), RulesConfig { kyc: kyc_rules(rules), ..config() }, |rules| rules)
}

/// A withdrawal of one coin of denomination 1 (10, and a fee of 0.1) from a reserve that this account filled.
fn withdraw(reserve_n: u8, ev_n: u8, origin_n: u8) -> Command {
    let Command::Withdraw(command) = super::world::withdraw(reserve_n, &[(ev_n, 1)], false) else {
        panic!("a withdrawal")
    };
    Command::Withdraw(Withdraw { origin: Some(limited(origin_n)), ..command })
}

/// Fills a reserve from an account.
fn credit(world: &World, reserve_n: u8, amount: &str, bank_row: u64, account_n: u8) {
    world.ok(credits(&[(reserve_n, bank_row, amount, account_n, world.now())], bank_row));
}

fn required(account: PaytoHash, checks: &str) -> Refusal {
    Refusal::KycRequired { h_payto: account, checks: checks.to_owned() }
}

fn identify(world: &World, account: PaytoHash, provider: &str, secs: u64) {
    world.ok(start_kyc(account, provider, "t"));
    world.ok(finish_kyc(account, provider, "t", Duration::from_secs(secs)));
}

#[test]
fn withdrawals_from_all_reserves_of_an_account_count_and_a_refusal_counts_nothing() {
    let world = world(vec![rule(KycOperation::Withdraw, "name", "30", 100)]);
    for (reserve_n, row) in [(1, 1), (2, 2), (3, 3)] {
        // Account 7 fills reserves 1 and 2, account 8 reserve 3.
        credit(&world, reserve_n, "50", row, if reserve_n == 3 { 8 } else { 7 });
    }
    world.ok(withdraw(1, 1, 7));
    world.ok(withdraw(2, 2, 7));
    // 10.1 three times reaches 30.
    let refused = world.refused(withdraw(1, 3, 7));
    assert_eq!(refused, required(h_payto(7), "name"));
    assert_eq!(world.balance(1), m("39.9"));
    world.ok(withdraw(3, 4, 8));
    // A repetition is no new withdrawal.
    world.ok(withdraw(1, 1, 7));
    // The wrong account, or none: the caller read too early.
    assert_eq!(world.refused(withdraw(1, 3, 8)), Refusal::OriginOther);
    // After the time frame, they no longer count.
    world.advance(101);
    world.ok(withdraw(1, 3, 7));
    let usage = world.store.get::<KycUsages>(&limited(7).usage_key(KycOperation::Withdraw));
    assert_eq!(usage.unwrap().unwrap().row.events.0, [KycEvent { time: world.now(), amount: m("10.1") }]);
    world.totals();
}

#[test]
fn every_rule_has_its_own_time_frame_and_checks() {
    let rules = kyc_rules(vec![
        rule(KycOperation::Withdraw, "name", "10", 100),
        rule(KycOperation::Withdraw, "address", "50", 1_000),
    ]);
    let event = |secs, amount| KycEvent { time: at(secs), amount: m(amount) };
    let missing = |events: &[KycEvent], amount| {
        rules.missing(KycOperation::Withdraw, m(amount), events, &[], at(1_000))
    };
    assert_eq!(missing(&[], "9.99"), None);
    assert_eq!(missing(&[], "10").as_deref(), Some("name"));
    // Within the last 100 seconds, both ends included; earlier only for the other rule.
    assert_eq!(missing(&[event(900, "5")], "5").as_deref(), Some("name"));
    assert_eq!(missing(&[event(899, "5")], "5"), None);
    assert_eq!(missing(&[event(1, "45")], "5").as_deref(), Some("address"));
    assert_eq!(missing(&[event(1, "45")], "10").as_deref(), Some("address name"));
    // More than an amount can say.
    let most = KycEvent { time: at(999), amount: Money::MAX };
    assert_eq!(missing(&[most], "1").as_deref(), Some("address name"));
    assert_eq!(rules.missing(KycOperation::Merge, Money::MAX, &[most], &[], at(1_000)), None);
}

#[test]
fn an_identification_counts_while_it_is_valid() {
    let world = world(vec![rule(KycOperation::Withdraw, "name address", "1", 100)]);
    credit(&world, 1, "90", 1, 7);
    let refused = |world: &World| world.refused(withdraw(1, 9, 7));
    assert_eq!(refused(&world), required(h_payto(7), "address name"));
    identify(&world, h_payto(7), "id", 50);
    assert_eq!(refused(&world), required(h_payto(7), "address"));
    identify(&world, h_payto(7), "home", 20);
    world.ok(withdraw(1, 1, 7));
    // A later result never shortens it.
    identify(&world, h_payto(7), "home", 5);
    world.advance(19);
    world.ok(withdraw(1, 2, 7));
    world.advance(1);
    assert_eq!(refused(&world), required(h_payto(7), "address"));
    // A provider that is no longer configured proves nothing.
    let gone = KycRules { providers: Vec::new(), ..world.rules.config.kyc.clone() };
    let processes = kyc::processes(&world.store, h_payto(7)).unwrap();
    let missing = gone.unsatisfied(["name"].into_iter(), &kyc::pairs(&processes), world.now());
    assert_eq!(missing, ["name"]);
}

#[test]
fn a_requirement_has_one_number_and_belongs_to_its_account() {
    let world = world(Vec::new());
    let require = |account, row| {
        let command = RequireKyc { h_payto: account, checks: "address name".to_owned(), row };
        let Answer::RequireKyc(stored) = world.ok(Command::RequireKyc(command)) else { panic!() };
        stored.row
    };
    assert_eq!(require(h_payto(7), 11), 11);
    assert_eq!((require(h_payto(7), 12), require(h_payto(8), 13)), (11, 13));
    let of = |account, row| kyc::requirement(&world.store, account, row).unwrap();
    assert_eq!(of(h_payto(7), 11), kyc::Requirement::Of("address name".to_owned()));
    assert_eq!(of(h_payto(7), 13), kyc::Requirement::Foreign);
    assert_eq!(of(h_payto(7), 12), kyc::Requirement::Unknown);
    assert_eq!(requirement_number([0; 8]), 1);
    assert_eq!(requirement_number([255; 8]), (1 << 53) - 1);
    // A number of an earlier version follows from the account, so it tells nothing, and is replaced.
    let digest = sha512_parts(&[b"kyc-requirement", h_payto(9).as_bytes(), b"address name"]);
    let guessed = requirement_number(*digest.as_bytes().first_chunk().unwrap());
    assert_eq!(require(h_payto(9), guessed), guessed);
    assert_eq!(of(h_payto(9), guessed), kyc::Requirement::Unknown);
    assert_eq!(require(h_payto(9), 14), 14);
    assert_eq!(of(h_payto(9), 14), kyc::Requirement::Of("address name".to_owned()));
}

#[test]
fn all_spellings_of_an_account_share_its_limits() {
    let world = world(vec![
        rule(KycOperation::Withdraw, "name", "30", 100),
        rule(KycOperation::Close, "name", "60", 100),
        rule(KycOperation::Deposit, "name", "7", 100),
    ]);
    // The bank writes the sender's name in another way each time.
    let spelled = |n: u8| format!("payto://x-taler-bank/host-{n}/account-7?receiver-name={n}");
    for n in 1..=3 {
        let mut credit = credits(&[(n, n.into(), "50", 7, world.now())], n.into());
        let Command::Credits(inner) = &mut credit else { panic!() };
        (inner.credits[0].payto_uri, inner.credits[0].h_payto) =
            (spelled(n), LimitedAccount::of(&spelled(n)).h_payto());
        world.ok(credit);
    }
    let withdraw = |reserve_n: u8, ev_n: u8| {
        let Command::Withdraw(command) = withdraw(reserve_n, ev_n, 7) else { panic!("a withdrawal") };
        Command::Withdraw(Withdraw { origin: Some(LimitedAccount::of(&spelled(reserve_n))), ..command })
    };
    world.ok(withdraw(1, 1));
    world.ok(withdraw(2, 2));
    let refused = world.refused(withdraw(3, 3));
    assert_eq!(refused, required(LimitedAccount::of(&spelled(3)).h_payto(), "name"));

    // Closings to an account.
    let close = |reserve_n: u8, target: &str| {
        let account = LimitedAccount::of(target);
        Command::RequestClose(RequestClose {
            requested: Some(account.h_payto()),
            h_payto: account.h_payto(),
            payto_uri: target.to_owned(),
            ..request_close(reserve_n, 1, 1)
        })
    };
    world.ok(close(1, "payto://x-taler-bank/a/thief?receiver-name=A"));
    let again = close(2, "payto://X-TALER-BANK/a/THIEF/?receiver-name=B");
    assert!(matches!(world.refused(again), Refusal::KycRequired { .. }));

    // Payouts to a merchant.
    let pay = |n: u8, payto_uri: &str| {
        let mut command = deposit(&[(n, 1, "5")], (B, n, 42), (0, 0));
        let account = LimitedAccount::of(payto_uri);
        (command.h_payto, command.payto_uri) = (account.h_payto(), payto_uri.to_owned());
        world.ok(Command::Deposit(command));
        let target = DepositTarget { h_payto: account.h_payto(), ..target(B, 42) };
        world.run(Command::Aggregate(Aggregate { target, payee: Some(account), ..payout(n, Trigger::Due) }))
    };
    let paid = pay(1, "payto://x-taler-bank/bank/shop?receiver-name=Shop");
    assert!(matches!(paid, Ok(Answer::Aggregate(Aggregated::Prepared { .. }))), "{paid:?}");
    let held = pay(2, "payto://x-taler-bank/bank:443/%53hop?receiver-name=Other");
    assert!(matches!(held, Err(Refusal::KycRequired { .. })), "{held:?}");
    // The worker names the account of the target.
    let account = LimitedAccount::of("payto://x-taler-bank/bank:443/%53hop?receiver-name=Other");
    let target = DepositTarget { h_payto: account.h_payto(), ..target(B, 42) };
    let foreign = Aggregate { target, payee: Some(limited(1)), ..payout(3, Trigger::Due) };
    assert_eq!(world.refused(Command::Aggregate(foreign)), Refusal::TargetMismatch);
}

/// A purse of this value that reserve 1 asks for.
fn ask(n: u8, value: &str, expiration_s: u64) -> ReservePurse {
    reserve_purse(n, 1, Some("0"), purse_terms(value, expiration_s))
}

#[test]
fn purses_that_a_reserve_asks_for_count_until_they_are_decided() {
    let world = world(vec![rule(KycOperation::Merge, "name", "5", 100)]);
    credit(&world, 99, "90", 1, 99);
    for ev_n in 1..=3 {
        world.ok(super::world::withdraw(99, &[(ev_n, 1)], false));
    }
    let ask = |n| Command::ReservePurse(ask(n, "2", if n < 6 { 10_000 } else { 30_000 }));
    let refused = |world: &World, n| {
        assert!(matches!(world.refused(ask(n)), Refusal::KycRequired { .. }), "{n}");
    };
    world.ok(ask(1));
    world.ok(ask(2));
    refused(&world, 3);
    // The same again is no new one.
    world.ok(ask(2));
    // However long they wait: the time frame does not matter before they are paid.
    world.advance(150);
    refused(&world, 3);
    // What is paid counts from then on.
    let coins = vec![purse_coin(1, 1, "2.1")];
    let reserve_pub = Some(reserve(1));
    let deposit = PurseDeposit { purse_pub: purse_pub(1), reserve_pub, coins };
    world.ok(Command::PurseDeposit(deposit));
    world.advance(90);
    refused(&world, 3);
    world.advance(20);
    world.ok(ask(3));
    // What is deleted or has expired no longer counts.
    refused(&world, 4);
    world.ok(purse_delete(2, Some(1), &[]));
    world.ok(ask(4));
    refused(&world, 5);
    world.advance(10_000);
    world.ok(ask(6));
    let usage = world.store.all::<KycUsages>().unwrap().pop().unwrap().row;
    assert_eq!((usage.holds.0.len(), usage.events.0.len()), (1, 1));
}

#[test]
fn an_account_without_identification_has_a_bounded_number_of_open_purses() {
    let world = world(vec![rule(KycOperation::Merge, "name", "500", 100)]);
    let ask = |n: usize| {
        let mut key = [7; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        let purse_pub = EddsaPublicKey::from_bytes(key);
        Command::ReservePurse(ReservePurse { purse_pub, ..ask(1, "0.01", 1_000) })
    };
    for n in 0..HOLDS_MAX {
        world.ok(ask(n));
    }
    assert_eq!(world.refused(ask(HOLDS_MAX)), Refusal::PurseUnaffordable);
    let account = PaytoUri::reserve(&config().exchange_base_url, &reserve(1)).unwrap();
    identify(&world, account.hash(), "id", 1_000);
    world.ok(ask(HOLDS_MAX));
}

/// The form as a customer fills it in.
fn submit(h_payto: PaytoHash, token: &str, attributes: u8) -> Command {
    let (provider, token) = ("id".to_owned(), token.to_owned());
    Command::SubmitKyc(SubmitKyc { h_payto, provider, token, attributes: vec![attributes] })
}

#[test]
fn what_identified_somebody_once_does_so_no_more() {
    let world = world(Vec::new());
    let account = h_payto(7);
    let start = |token: &str| {
        let Answer::StartKyc(started) = world.ok(start_kyc(account, "id", token)) else { panic!() };
        started.token
    };
    let finish = |token: &str| finish_kyc(account, "id", token, Duration::from_secs(10));
    let submit = |token: &str, attributes: u8| submit(account, token, attributes);
    assert_eq!(start("one"), "one");
    assert_eq!(world.refused(finish("guess")), Refusal::KycProcessUnknown);
    world.ok(finish("one"));
    assert_eq!(world.refused(submit("one", 1)), Refusal::KycWaits, "identified");
    world.advance(10);
    assert_eq!(start("two"), "two");
    assert_eq!(world.refused(finish("one")), Refusal::KycProcessUnknown);
    // What waits for officers cannot be replaced, not even by the same page.
    world.ok(submit("two", 1));
    assert_eq!(world.refused(submit("two", 2)), Refusal::KycWaits);
    assert_eq!(start("three"), "two");
    let process = kyc::process(&world.store, account, "id").unwrap().unwrap();
    assert_eq!((process.state, process.submitted), (KycState::Submitted, vec![1]));
}

#[test]
fn the_cheapest_provider_of_most_checks_is_chosen() {
    let rules = KycRules {
        rules: Vec::new(),
        providers: vec![
            provider("one", "name", 1),
            provider("dear", "name address", 9),
            provider("both", "address name", 8),
            KycProvider { user_type: KycUserType::Business, ..provider("firm", "name", 0) },
        ],
    };
    let choose = |missing: &[&str], user| rules.choose(missing, user).map(|found| found.section.as_str());
    assert_eq!(choose(&["name"], KycUserType::Individual), Some("one"));
    assert_eq!(choose(&["address", "name"], KycUserType::Individual), Some("both"));
    assert_eq!(choose(&["address", "name"], KycUserType::Business), Some("firm"));
    assert_eq!(choose(&["blood"], KycUserType::Individual), None);
}

#[test]
fn an_account_keeps_a_bounded_number_of_events_and_forgets_no_amount() {
    let rules = kyc_rules(vec![rule(KycOperation::Merge, "name", "1", 1_000_000)]);
    let mut events = Vec::new();
    for n in 0..EVENTS_MAX as u64 + 40 {
        events = rules.counted(KycOperation::Merge, &events, m("1"), at(n)).0;
        events = rules.counted(KycOperation::Merge, &events, m("0.5"), at(n)).0;
    }
    assert_eq!(events.len(), EVENTS_MAX);
    let sum = events.iter().fold(Money::ZERO, |sum, event| sum.checked_add(event.amount).unwrap());
    assert_eq!(sum, m("444"));
    // What became one has the later time.
    assert_eq!(events[0], KycEvent { time: at(40), amount: m("61.5") });
    // What no rule looks back to is dropped.
    let later = Timestamp::from_secs(T0 + 1_000_100);
    let kept = rules.counted(KycOperation::Merge, &events, m("1"), later).0;
    assert_eq!(kept.first().unwrap().time, at(100));
}

fn payout(wtid_n: u8, trigger: Trigger) -> Aggregate {
    let request_uid = hash(60, wtid_n);
    Aggregate { deposits_max: 10, trigger, request_uid, ..aggregate(B, 42, wtid_n) }
}

#[test]
fn a_payout_is_held_until_two_officers_release_it_and_is_paid_once() {
    let world = world(vec![rule(KycOperation::Deposit, "name", "5", 1_000)]);
    credit(&world, 99, "20", 1, 99);
    world.ok(withdraw(99, 1, 99));
    world.ok(Command::Deposit(deposit(&[(1, 1, "8")], (B, 1, 42), (0, 0))));
    let key = deposit_key(1, B, 1);
    let account = h_payto(42);
    let refused = world.refused(Command::Aggregate(payout(1, Trigger::Due)));
    assert_eq!(refused, required(account, "name"));
    let row = 77;
    world.ok(Command::RequireKyc(RequireKyc { h_payto: account, checks: "name".to_owned(), row }));
    let held = world.ok(Command::Aggregate(payout(1, Trigger::Due)));
    assert_eq!(held, Answer::Aggregate(Aggregated::Transient { taken: 1, total: m("7.9"), more: false }));
    let status = read::deposit_status(&world.store, &world.denoms, &key).unwrap().unwrap();
    assert_eq!((status.transfer, status.kyc_row), (None, Some(row)));
    world.totals();

    // The user fills in the form; nobody else can.
    world.ok(start_kyc(account, "id", "secret"));
    let again = world.ok(start_kyc(account, "id", "other"));
    assert!(matches!(again, Answer::StartKyc(started) if started.token == "secret"));
    let submit = |token: &str, attributes: u8| submit(account, token, attributes);
    assert_eq!(world.refused(submit("guess", 1)), Refusal::KycProcessUnknown);
    world.ok(submit("secret", 1));
    assert_eq!(kyc::submitted(&world.store, 10).unwrap()[0].held, m("7.9"));

    let decide = |officer: &str, submitted: u8, approved, secs| {
        Command::DecideKyc(DecideKyc {
            h_payto: account,
            provider: "id".to_owned(),
            submitted: vec![submitted],
            officer: officer.to_owned(),
            approved,
            reason: "seen".to_owned(),
            time: at(secs),
            validity: Duration::from_secs(500),
        })
    };
    let decided = |outcome| match outcome {
        Answer::DecideKyc(decided) => decided,
        other => panic!("{other:?}"),
    };
    // A rejected user tries again; an officer who saw the old form cannot decide on the new one.
    assert_eq!(decided(world.ok(decide("alice", 1, false, 1))), KycDecided::Rejected);
    world.ok(submit("secret", 2));
    assert_eq!(world.refused(decide("alice", 1, true, 2)), Refusal::KycChanged);
    assert_eq!(decided(world.ok(decide("alice", 2, true, 3))), KycDecided::NeedsAnother { held: m("7.9") });
    assert_eq!(world.refused(decide("alice", 2, true, 4)), Refusal::KycSameOfficer);
    assert!(world.store.get::<KycAlerts>(&KycAccountKey { h_payto: account }).unwrap().is_none());
    let approved = KycDecided::Approved { expiration: world.now().saturating_add(Duration::from_secs(500)) };
    assert_eq!(decided(world.ok(decide("bob", 2, true, 5))), approved);
    assert_eq!(world.refused(decide("bob", 2, true, 6)), Refusal::KycChanged);
    let process = kyc::process(&world.store, account, "id").unwrap().unwrap();
    assert_eq!((process.state, process.attributes), (KycState::Approved, vec![2]));
    let trail = kyc::account(&world.store, account).unwrap().decisions;
    let trail: Vec<_> = trail.iter().map(|d| (d.key.officer.as_str(), d.row.approved)).collect();
    assert_eq!(trail, [("alice", false), ("alice", true), ("bob", true)]);

    let alerts = kyc::alerts(&world.store, 10).unwrap();
    assert_eq!((alerts.len(), alerts[0].aggregates.len()), (1, 1));
    let paid = Aggregated::Prepared { taken: 0, amount: m("7.89") };
    let release = Command::Aggregate(payout(1, Trigger::Continued));
    assert_eq!(world.ok(release.clone()), Answer::Aggregate(paid));
    assert_eq!(world.ok(release), Answer::Aggregate(Aggregated::Nothing));
    let clear = |secs| Command::ClearKycAlert(ClearKycAlert { h_payto: account, time: at(secs) });
    world.ok(clear(9_999));
    assert_eq!(kyc::alerts(&world.store, 10).unwrap().len(), 1, "a later alert stays");
    world.ok(Command::ClearKycAlert(ClearKycAlert { h_payto: account, time: alerts[0].time }));
    assert!(kyc::alerts(&world.store, 10).unwrap().is_empty());
    world.totals();
}

#[test]
fn closing_to_a_foreign_account_is_limited_and_to_the_origin_is_not() {
    let world = world(vec![rule(KycOperation::Close, "name", "5", 1_000)]);
    credit(&world, 1, "50", 1, 7);
    let close = |request_secs, target| Command::RequestClose(request_close(1, request_secs, target));
    assert_eq!(world.refused(close(1, 9)), required(h_payto(9), "name"));
    world.ok(close(2, 7));
    identify(&world, h_payto(9), "id", 100);
    world.ok(close(3, 9));
}
