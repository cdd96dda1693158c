//! Limits on customers: each rule's own time frame, what counts, and how payouts are held and released.

use batzen_exchange::reads::{kyc, read};
use batzen_exchange::rules::kyc::{EVENTS_MAX, requirement_row};
use batzen_exchange::rules::{
    Aggregate, Aggregated, Answer, ClearKycAlert, Command, DecideKyc, FinishKyc, KycDecided, KycProvider,
    KycRule, KycRules, KycUserType, Refusal, RequestClose, RequireKyc, RulesConfig, StartKyc, SubmitKyc,
    Trigger, Withdraw,
};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{
    KycAccountKey, KycAlerts, KycEvent, KycOperation, KycState, KycUsageKey, KycUsages, PaytoHash,
};

use crate::rules::world::*;

/// The merchant.
const B: u8 = 2;

fn rule(operation: KycOperation, checks: &str, threshold: &str, secs: u64) -> KycRule {
    let checks = checks.split(' ').map(str::to_owned).collect();
    KycRule { operation, checks, threshold: m(threshold), timeframe: Duration::from_secs(secs) }
}

fn provider(section: &str, checks: &str, cost: u64) -> KycProvider {
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
    Command::Withdraw(Withdraw { origin: Some(h_payto(origin_n)), ..command })
}

/// Fills a reserve from an account.
fn credit(world: &World, reserve_n: u8, amount: &str, bank_row: u64, account_n: u8) {
    world.ok(credits(&[(reserve_n, bank_row, amount, account_n, world.now())], bank_row));
}

fn required(account: PaytoHash, checks: &str) -> Refusal {
    Refusal::KycRequired { h_payto: account, checks: checks.to_owned() }
}

fn identify(world: &World, account: PaytoHash, provider: &str, secs: u64) {
    let provider = provider.to_owned();
    let start = StartKyc { h_payto: account, provider: provider.clone(), token: "t".to_owned() };
    world.ok(Command::StartKyc(start));
    world.ok(Command::FinishKyc(FinishKyc {
        h_payto: account,
        provider,
        provider_user_id: "u".to_owned(),
        attributes: vec![1],
        validity: Duration::from_secs(secs),
    }));
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
    let usage =
        world.store.get::<KycUsages>(&KycUsageKey { h_payto: h_payto(7), operation: KycOperation::Withdraw });
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
    let require = |account| RequireKyc { h_payto: account, checks: "address name".to_owned() };
    let mut rows = Vec::new();
    for account in [h_payto(7), h_payto(7), h_payto(8)] {
        let Answer::RequireKyc(stored) = world.ok(Command::RequireKyc(require(account))) else { panic!() };
        rows.push(stored.row);
    }
    assert!(rows[0] == rows[1] && rows[0] != rows[2] && rows.iter().all(|row| (1..1 << 53).contains(row)));
    let of = |account, row| kyc::requirement(&world.store, account, row).unwrap();
    assert_eq!(of(h_payto(7), rows[0]), kyc::Requirement::Of("address name".to_owned()));
    assert_eq!(of(h_payto(7), rows[2]), kyc::Requirement::Foreign);
    assert_eq!(of(h_payto(7), 1), kyc::Requirement::Unknown);
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

fn aggregate(wtid_n: u8, kyc_hold: Option<u64>, trigger: Trigger) -> Aggregate {
    Aggregate {
        target: target(B, 42),
        method: METHOD.to_owned(),
        account: account(),
        until: Timestamp::NEVER,
        deposits_max: 10,
        trigger,
        complete: false,
        wtid: wtid(wtid_n),
        request_uid: hash(60, wtid_n),
        kyc_hold,
    }
}

#[test]
fn a_payout_is_held_until_two_officers_release_it_and_is_paid_once() {
    let world = world(vec![rule(KycOperation::Deposit, "name", "5", 1_000)]);
    credit(&world, 99, "20", 1, 99);
    world.ok(withdraw(99, 1, 99));
    world.ok(Command::Deposit(deposit(&[(1, 1, "8")], (B, 1, 42), (0, 0))));
    let key = deposit_key(1, B, 1);
    let account = h_payto(42);
    let refused = world.refused(Command::Aggregate(aggregate(1, None, Trigger::Due)));
    assert_eq!(refused, required(account, "name"));
    let row = requirement_row(account, "name");
    world.ok(Command::RequireKyc(RequireKyc { h_payto: account, checks: "name".to_owned() }));
    let held = world.ok(Command::Aggregate(aggregate(1, Some(row), Trigger::Due)));
    assert_eq!(held, Answer::Aggregate(Aggregated::Transient { taken: 1, total: m("7.9"), more: false }));
    let status = read::deposit_status(&world.store, &world.denoms, &key).unwrap().unwrap();
    assert_eq!((status.transfer, status.kyc_row), (None, Some(row)));
    world.totals();

    // The user fills in the form; nobody else can.
    let section = "id".to_owned();
    let start = StartKyc { h_payto: account, provider: section.clone(), token: "secret".to_owned() };
    world.ok(Command::StartKyc(start.clone()));
    let again = world.ok(Command::StartKyc(StartKyc { token: "other".to_owned(), ..start }));
    assert!(matches!(again, Answer::StartKyc(started) if started.token == "secret"));
    let submit = |token: &str, attributes: u8| {
        let (provider, token) = (section.clone(), token.to_owned());
        Command::SubmitKyc(SubmitKyc { h_payto: account, provider, token, attributes: vec![attributes] })
    };
    assert_eq!(world.refused(submit("guess", 1)), Refusal::KycProcessUnknown);
    world.ok(submit("secret", 1));
    assert_eq!(kyc::submitted(&world.store, 10).unwrap()[0].held, m("7.9"));

    let decide = |officer: &str, submitted: u8, approved, secs| {
        Command::DecideKyc(DecideKyc {
            h_payto: account,
            provider: section.clone(),
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
    let release = Command::Aggregate(aggregate(1, Some(row), Trigger::Continued));
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
    let close = |request_secs, target: u8| {
        Command::RequestClose(RequestClose {
            reserve_pub: reserve(1),
            request_time: at(request_secs),
            requested: Some(h_payto(target)),
            h_payto: h_payto(target),
            payto_uri: payto(target),
            method: METHOD.to_owned(),
            reserve_sig: sig(1),
        })
    };
    assert_eq!(world.refused(close(1, 9)), required(h_payto(9), "name"));
    world.ok(close(2, 7));
    identify(&world, h_payto(9), "id", 100);
    world.ok(close(3, 9));
}
