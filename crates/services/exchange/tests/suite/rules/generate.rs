//! Random commands that collide often: few reserves, coins, merchants, contracts, planchets, nonces and
//! identifiers.

use batzen_crypto::{CsNonce, HashCode, ShortHash};
use batzen_exchange::rules::{
    Aggregate, ClearKycAlert, CloseReserve, Command, Contract, Credit, Credits, DecideKyc, Deposit,
    FinishKyc, KycRules, PurseCoin, PurseCreate, PurseDelete, PurseDeposit, PurseExpire, PurseMerge,
    PurseTerms, RequireKyc, ReserveOpen, ReservePurse, RulesConfig, StartKyc, SubmitKyc, TransferFailed,
    TransferRetry, TransfersDone, Trigger,
};
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::{Duration, Money};
use batzen_tables::exchange::{FreshCoin, KycOperation, PurseMergeRow};
use proptest::prelude::*;

use crate::rules::kyc::{provider, rule};
use crate::rules::recoups::{recoup, recoup_refresh};
use crate::rules::world::*;

/// A step of a test: a command, or something that happens between batches.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Do(Box<Command>),
    Advance(u64),
    Revoke(u32),
}

const RESERVES: u8 = 3;
const PLANCHETS: u8 = 12;
const COINS: u8 = 6;
const MERCHANTS: u8 = 2;
const CONTRACTS: u8 = 2;
const ACCOUNTS: u8 = 2;
const RCS: u8 = 6;
const WTIDS: u8 = 5;

/// The denomination that planchet and coin `n` belong to.
fn denom_of(n: u8) -> u32 {
    u32::from(n % 3) + 1
}

fn amount() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["0", "0.04", "0.2", "0.212", "1", "1.5", "2", "3.013", "5", "10", "10.5"])
}

/// The same bank row always has the same content.
fn credit(bank_row: u8) -> Credit {
    let amounts = ["0.005", "1", "12.5", "21", "40"];
    let sender = bank_row % 3;
    Credit {
        bank_row: u64::from(bank_row),
        reserve_pub: reserve(bank_row % RESERVES),
        amount: m(amounts[usize::from(bank_row) % amounts.len()]),
        payto_uri: payto(sender),
        h_payto: h_payto(sender),
        time: at(u64::from(bank_row) * 40),
    }
}

fn credits() -> impl Strategy<Value = Command> {
    prop::collection::vec(0u8..25, 1..5).prop_map(|rows| {
        let cursor = u64::from(rows.iter().copied().max().unwrap_or(0));
        let credits = rows.into_iter().map(credit).collect();
        Command::Credits(Credits { account: account(), credits, cursor, range: None })
    })
}

fn withdrawal() -> impl Strategy<Value = Command> {
    let planchets = prop::collection::vec(0..PLANCHETS, 1..4);
    (0..RESERVES, planchets, any::<bool>(), prop::bool::weighted(0.1), prop::option::weighted(0.9, 0u8..3))
        .prop_map(|(n, planchets, batch, unsigned, sender)| {
            let planchets: Vec<(u8, u32)> = planchets.into_iter().map(|p| (p, denom_of(p))).collect();
            let Command::Withdraw(mut command) = withdraw(n, &planchets, batch) else { unreachable!() };
            command.origin = sender.map(limited);
            if unsigned {
                command.planchets[0].ev_sig = None;
            }
            Command::Withdraw(command)
        })
}

fn history() -> impl Strategy<Value = Command> {
    (0..RESERVES, 0u64..3, prop::sample::select(vec!["0", "0.3", "5"]))
        .prop_map(|(n, time_s, fee)| super::world::history(n, time_s, fee))
}

fn close() -> impl Strategy<Value = Command> {
    (0..RESERVES, 0u8..3, 0..WTIDS, prop::option::of(0u64..3))
        .prop_map(|(n, sender, wtid_n, request_s)| closing(n, request_s, sender, wtid_n))
}

/// Usually the coin's own denomination and age, rarely another.
fn coin_choice() -> impl Strategy<Value = (u8, u32, Option<ShortHash>)> {
    (0..COINS, 0u8..30).prop_map(|(n, odd)| {
        let denom = if odd == 0 { denom_of(n + 1) } else { denom_of(n) };
        let age = (odd == 1).then(|| ShortHash::from_bytes([1; 32]));
        (n, denom, age)
    })
}

fn payment() -> impl Strategy<Value = Command> {
    let coins = prop::collection::vec((coin_choice(), amount(), 0u8..12), 1..4);
    let deadlines =
        prop::sample::select(vec![(0, 0), (0, 400), (300, 400), (0, 900), (900, 900), (500, 400)]);
    (coins, 0..MERCHANTS, 0..CONTRACTS, 0..ACCOUNTS, deadlines).prop_map(
        |(coins, merchant_n, contract_n, account_n, deadlines)| {
            let plain: Vec<(u8, u32, &str)> =
                coins.iter().map(|((n, denom, _), amount, _)| (*n, *denom, *amount)).collect();
            let mut request = deposit(&plain, (merchant_n, contract_n, account_n), deadlines);
            for (entry, ((_, _, age), _, odd)) in request.coins.iter_mut().zip(coins) {
                entry.coin.h_age = age;
                if odd == 0 {
                    entry.coin_sig = sig(200);
                }
            }
            Command::Deposit(request)
        },
    )
}

fn refunding() -> impl Strategy<Value = Command> {
    (0..COINS, 0..MERCHANTS, 0..CONTRACTS, 0u64..3, amount())
        .prop_map(|(n, merchant_n, contract_n, id, amount)| refund((n, merchant_n, contract_n), id, amount))
}

fn melting() -> impl Strategy<Value = Command> {
    (coin_choice(), amount(), 0..RCS, 0u8..3, prop::option::of(0u8..3)).prop_map(
        |((n, denom, age), amount, rc_n, index, rms)| {
            let Command::Melt(mut command) = melt(n, denom, amount, rc_n, index, rms) else { unreachable!() };
            command.coin.h_age = age;
            Command::Melt(command)
        },
    )
}

/// Fresh coin `k` of commitment `rc`; planchets of different commitments may be equal.
fn revealing() -> impl Strategy<Value = Command> {
    (0..COINS, 0..RCS, prop::collection::vec((0u8..8, 1u32..4), 1..3), prop::option::of(0u8..3), 0u8..3)
        .prop_map(|(n, rc_n, fresh, rms, attempt)| {
            let fresh: Vec<(u8, u32)> = fresh.into_iter().map(|(p, _)| (21 + p, denom_of(p))).collect();
            let Command::Reveal(mut command) = reveal(n, rc_n, &fresh, rms, attempt) else { unreachable!() };
            command.fresh.dedup_by(|a: &mut FreshCoin, b: &mut FreshCoin| a.h_coin_ev == b.h_coin_ev);
            command.rms = rms.map(|rms| CsNonce::from_bytes([rms; 32]));
            Command::Reveal(command)
        })
}

fn recouping() -> impl Strategy<Value = Command> {
    // A planchet belongs to one coin: a recoup cannot be made with another.
    (0..COINS, 0..RESERVES).prop_map(|(n, reserve_n)| recoup(n, denom_of(n), n, reserve_n))
}

fn recouping_refresh() -> impl Strategy<Value = Command> {
    (0..COINS, 0..COINS, 0..RCS).prop_map(|(n, old, rc_n)| recoup_refresh(n, denom_of(n), 21 + n, old, rc_n))
}

fn aggregating() -> impl Strategy<Value = Command> {
    (0..ACCOUNTS, 0..MERCHANTS, 0u8..8, 0..WTIDS).prop_map(|(account_n, merchant_n, odd, wtid_n)| {
        // Most merchants use few identifiers, so that commands often meet the same transient aggregate.
        let wtid_n = (merchant_n * ACCOUNTS + account_n) * WTIDS + wtid_n / 2;
        Command::Aggregate(Aggregate {
            method: if odd == 0 { "iban" } else { METHOD }.to_owned(),
            until: if odd == 5 { at(50) } else { batzen_protocol::Timestamp::NEVER },
            trigger: if odd < 3 { Trigger::Continued } else { Trigger::Due },
            complete: odd == 3,
            request_uid: HashCode::from_bytes([wtid_n; 64]),
            ..aggregate(merchant_n, account_n, wtid_n)
        })
    })
}

fn marking() -> impl Strategy<Value = Command> {
    (0u8..20, 0u8..4, 0..RESERVES).prop_map(|(wtid_n, kind, n)| {
        let wtid =
            if wtid_n == 0 { batzen_crypto::Wtid::from_bytes(*reserve(n).as_bytes()) } else { wtid(wtid_n) };
        match kind {
            0 => Command::TransferFailed(TransferFailed { wtid, reason: "404".to_owned() }),
            1 => Command::TransferRetry(TransferRetry { wtid }),
            2 => Command::TransfersDone(TransfersDone { wtids: vec![wtid] }),
            _ => Command::TransfersDone(TransfersDone { wtids: vec![self::wtid(1 + n), wtid] }),
        }
    })
}

// --- Purses and accounts

const PURSES: u8 = 4;

/// The terms of purse `n`; `odd`: others.
fn purse_terms(n: u8, odd: bool) -> PurseTerms {
    let targets = ["1.3", "4", "0", "2"];
    PurseTerms {
        merge_pub: key(78, n),
        h_contract_terms: contract(u8::from(odd)),
        min_age: 0,
        target: m(targets[usize::from(n)]),
        expiration: at(300 + 500 * u64::from(n)),
        purse_sig: sig(n),
    }
}

fn purse_contract(n: u8, odd: bool) -> Contract {
    Contract { contract_pub: key(79, n), econtract: vec![u8::from(odd); 3], econtract_sig: sig(n) }
}

fn purse_coins(max: usize) -> impl Strategy<Value = Vec<PurseCoin>> {
    let coin = (coin_choice(), amount(), 0u8..12).prop_map(|((n, denom, age), amount, odd)| {
        let mut coin = presented(n, denom);
        coin.h_age = age;
        PurseCoin { coin, amount: m(amount), coin_sig: if odd == 0 { sig(200) } else { sig(n) } }
    });
    prop::collection::vec(coin, 0..max)
}

/// Usually no reserve, else any.
fn named() -> impl Strategy<Value = Option<batzen_crypto::EddsaPublicKey>> {
    prop::option::of((0..RESERVES).prop_map(reserve))
}

fn purse_merge(reserve_n: u8, odd: bool) -> PurseMergeRow {
    let merge_sig = sig(if odd { 201 } else { reserve_n });
    PurseMergeRow { merge_sig, ..merge_row(reserve_n) }
}

fn merging(n: u8, reserve_n: u8, odd: bool) -> Command {
    let merge = purse_merge(reserve_n, odd);
    Command::PurseMerge(PurseMerge { purse_pub: purse_pub(n), reserve_pub: reserve(reserve_n), merge })
}

fn asking(n: u8, reserve_n: u8, fee: Option<&str>, odd: u8) -> Command {
    Command::ReservePurse(ReservePurse {
        // Some offer less than the fee.
        fee: fee.map_or(Money::ZERO, |fee| if odd == 2 { m("0.4") } else { m(fee) }),
        merge: purse_merge(reserve_n, odd == 1),
        contract: (odd > 4).then(|| purse_contract(n, odd == 5)),
        ..reserve_purse(n, reserve_n, fee, purse_terms(n, odd == 0))
    })
}

fn purse_command() -> impl Strategy<Value = Command> {
    let create = (0..PURSES, named(), purse_coins(3), 0u8..12).prop_map(|(n, reserve_pub, coins, odd)| {
        Command::PurseCreate(PurseCreate {
            reserve_pub: reserve_pub.filter(|_| odd > 6),
            fee: if odd == 3 { m("0.3") } else { Money::ZERO },
            contract: (odd > 4).then(|| purse_contract(n, odd == 5)),
            ..purse(n, purse_terms(n, odd == 0), coins)
        })
    });
    let deposit = (0..PURSES, named(), purse_coins(4)).prop_map(|(n, reserve_pub, coins)| {
        Command::PurseDeposit(PurseDeposit { purse_pub: purse_pub(n), reserve_pub, coins })
    });
    let merge = (0..PURSES, 0..RESERVES, 0u8..8).prop_map(|(n, r, odd)| merging(n, r, odd == 0));
    let fee = prop::sample::select(vec![None, None, Some("0"), Some("0.3")]);
    let ask = (0..PURSES, 0..RESERVES, fee, 0u8..9).prop_map(|(n, r, fee, odd)| asking(n, r, fee, odd));
    let refund = (0..PURSES, named(), prop::collection::vec(0..COINS, 0..3), any::<bool>())
        .prop_map(|(n, reserve_pub, coins, expires)| refund_purse(n, reserve_pub, &coins, expires));
    prop_oneof![3 => create, 5 => deposit, 3 => merge, 3 => ask, 4 => refund]
}

fn refund_purse(
    n: u8,
    reserve_pub: Option<batzen_crypto::EddsaPublicKey>,
    coins: &[u8],
    expires: bool,
) -> Command {
    let (purse_pub, coins) = (purse_pub(n), coins.iter().map(|n| coin(*n)).collect());
    if expires {
        Command::PurseExpire(PurseExpire { purse_pub, reserve_pub, coins })
    } else {
        Command::PurseDelete(PurseDelete { purse_pub, purse_sig: sig(n), reserve_pub, coins })
    }
}

fn opening() -> impl Strategy<Value = Command> {
    let days = prop::sample::select(vec![0u64, 40, 400, 800]);
    let payment = prop::sample::select(vec!["0", "0.5", "1.5", "3", "50"]);
    (0..RESERVES, 0u64..3, days, 0u32..4, payment, purse_coins(3)).prop_map(
        |(n, time_s, days, purse_limit, payment, coins)| {
            Command::ReserveOpen(ReserveOpen {
                reserve_pub: reserve(n),
                request_time: at(time_s),
                reserve_expiration: at(days * 24 * 3_600),
                purse_limit,
                payment: m(payment),
                account_fee: m("0.5"),
                coins,
                reserve_sig: sig(n),
            })
        },
    )
}

fn requesting_close() -> impl Strategy<Value = Command> {
    (0..RESERVES, 0u64..3, 0u8..3, any::<bool>(), 0u8..9).prop_map(|(n, time_s, account_n, is_named, odd)| {
        let mut command = request_close(n, time_s, account_n);
        if !is_named {
            command.requested = None;
        }
        match odd {
            0 => command.h_payto = h_payto(account_n + 1),
            1 => "without-fees".clone_into(&mut command.method),
            _ => {}
        }
        Command::RequestClose(command)
    })
}

fn closing(n: u8, request_s: Option<u64>, account_n: u8, wtid_n: u8) -> Command {
    Command::CloseReserve(CloseReserve {
        request_time: request_s.map(at),
        request_uid: HashCode::from_bytes([wtid_n; 64]),
        ..close_reserve(reserve(n), account_n, 100 + wtid_n)
    })
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        6 => credits(),
        10 => withdrawal(),
        2 => history(),
        3 => close(),
        14 => payment(),
        8 => refunding(),
        5 => melting(),
        4 => revealing(),
        4 => recouping(),
        4 => recouping_refresh(),
        8 => aggregating(),
        3 => marking(),
        14 => purse_command(),
        2 => opening(),
        2 => requesting_close(),
    ]
}

/// Random commands seldom form a meaningful sequence, so this generates one: a coin pays, is refunded and
/// aggregated, or is refreshed into a coin that is spent and recouped.
fn story() -> impl Strategy<Value = Vec<Op>> {
    let changed = (0..COINS, 0..COINS, 0..RCS, prop::sample::select(vec!["1.5", "2.5", "5"]), 0u8..12)
        .prop_map(|(old, fresh, rc_n, amount, kind)| {
            let mut ops = vec![
                doing(melt(old, denom_of(old), amount, rc_n, kind % 3, (kind == 1).then_some(rc_n))),
                doing(reveal(old, rc_n, &[(21 + fresh, denom_of(fresh))], Some(rc_n), 0)),
            ];
            if kind == 0 {
                ops.push(Op::Revoke(denom_of(fresh)));
            }
            ops.push(doing(recoup_refresh(fresh, denom_of(fresh), 21 + fresh, old, rc_n)));
            ops
        });
    let paid =
        (0..COINS, amount(), amount(), 0u64..2, 0..CONTRACTS).prop_map(|(n, paid, back, id, contract_n)| {
            let request = pay(n, paid, contract_n, (0, 0));
            vec![doing(Command::Deposit(request)), doing(refund((n, 0, contract_n), id, back))]
        });
    // One person pays another with a purse, which is merged, or refunded.
    let between = (0..PURSES, 0..COINS, 0..RESERVES, prop::sample::select(vec!["1.5", "2", "5"]), 0u8..4)
        .prop_map(|(n, coin_n, reserve_n, amount, kind)| {
            let create = send(n, coin_n, amount);
            let (purse_pub, reserve_pub) = (purse_pub(n), Some(reserve(reserve_n)));
            let coins = create.coins.clone();
            let create = Command::PurseCreate(create);
            match kind {
                0 => vec![doing(create), doing(merging(n, reserve_n, false))],
                1 => vec![doing(create), doing(refund_purse(n, None, &[coin_n], false))],
                2 => vec![doing(create), Op::Advance(600), doing(refund_purse(n, None, &[coin_n], true))],
                _ => vec![
                    doing(asking(n, reserve_n, Some("0"), 8)),
                    doing(Command::PurseDeposit(PurseDeposit { purse_pub, reserve_pub, coins })),
                ],
            }
        });
    // The owner of a reserve asks twice for its money.
    let closed = (0..RESERVES, 0u64..3, 0u8..3).prop_map(|(n, time_s, account_n)| {
        let times = [time_s, time_s + 1];
        let request = |time_s| doing(Command::RequestClose(request_close(n, time_s, account_n)));
        let close = |time_s| doing(closing(n, Some(time_s), account_n, 0));
        times.map(request).into_iter().chain(times.map(close)).collect()
    });
    prop_oneof![6 => changed, 6 => paid, 6 => between, 1 => closed]
}

fn doing(command: Command) -> Op {
    Op::Do(Box::new(command))
}

/// Many steps in groups.
pub(super) fn ops(groups: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        400 => command().prop_map(|command| vec![doing(command)]),
        40 => story(),
        12 => (0u64..600).prop_map(|seconds| vec![Op::Advance(seconds)]),
        1 => (1u32..4).prop_map(|denom| vec![Op::Revoke(denom)]),
    ];
    prop::collection::vec(one, groups).prop_map(|groups| groups.concat())
}

/// A configuration that limits every kind of operation, with two providers.
pub(super) fn limited_config() -> RulesConfig {
    let rules = vec![
        rule(KycOperation::Withdraw, "name", "15", 600),
        rule(KycOperation::Withdraw, "address name", "40", 5_000),
        rule(KycOperation::Deposit, "name", "4", 1_000),
        rule(KycOperation::Merge, "name", "4", 800),
        rule(KycOperation::Close, "name", "10", 800),
    ];
    let providers = vec![provider("id", "name", 1), provider("home", "address name", 1)];
    RulesConfig { kyc: KycRules { rules, providers }, ..config() }
}

/// An account that is limited: a bank account or a reserve's.
fn limited_account(n: u8) -> ShortHash {
    match n.checked_sub(3) {
        None => h_payto(n),
        Some(n) => {
            let payto = PaytoUri::reserve(&config().exchange_base_url, &reserve(n));
            payto.unwrap().hash()
        }
    }
}

/// Identifies the owner of bank account `n`.
pub(super) fn known_for_ever(n: u8) -> [Command; 2] {
    [start_kyc(h_payto(n), "home", "t"), finish_kyc(h_payto(n), "home", "t", Duration::FOREVER)]
}

/// A requirement of a limited account. Its number depends on the account, so that several nodes agree on it.
fn require(n: u8) -> RequireKyc {
    RequireKyc { h_payto: limited_account(n), checks: "name".to_owned(), row: u64::from(n) + 1 }
}

fn identifying() -> impl Strategy<Value = Command> {
    let provider = prop::sample::select(vec!["id", "home"]);
    (0u8..3 + RESERVES, provider, 0u8..14, 0u8..2, 0u64..3).prop_map(|(n, provider, kind, choice, time_s)| {
        let (h_payto, provider) = (limited_account(n), provider.to_owned());
        let validity = Duration::from_secs(300 * (time_s + 1));
        match kind {
            0 | 11 | 12 => Command::RequireKyc(require(n)),
            1..4 => Command::StartKyc(StartKyc { h_payto, provider, token: choice.to_string() }),
            4 | 5 => Command::FinishKyc(FinishKyc {
                h_payto,
                provider,
                token: choice.to_string(),
                provider_user_id: "u".to_owned(),
                attributes: vec![choice; usize::from(choice)],
                validity,
            }),
            6 | 7 => Command::SubmitKyc(SubmitKyc {
                h_payto,
                provider,
                token: choice.to_string(),
                attributes: vec![7],
            }),
            8..11 => Command::DecideKyc(DecideKyc {
                h_payto,
                provider,
                submitted: vec![7],
                officer: if choice == 0 { "alice" } else { "bob" }.to_owned(),
                approved: time_s > 0,
                reason: "r".to_owned(),
                time: at(time_s),
                validity,
            }),
            _ => Command::ClearKycAlert(ClearKycAlert { h_payto, time: at(time_s) }),
        }
    })
}

/// A customer fills in the form, and officers decide.
fn form() -> impl Strategy<Value = Vec<Op>> {
    (0u8..3 + RESERVES, 0u64..9, 0u8..4).prop_map(|(n, time_s, kind)| {
        let (h_payto, provider) = (limited_account(n), "id".to_owned());
        let (token, attributes) = ("0".to_owned(), vec![7]);
        let submit = SubmitKyc { h_payto, provider: provider.clone(), token, attributes };
        let decide = |officer: &str, later_s| {
            Command::DecideKyc(DecideKyc {
                h_payto,
                provider: provider.clone(),
                submitted: vec![7],
                officer: officer.to_owned(),
                approved: kind != 0,
                reason: "r".to_owned(),
                time: at(10 * time_s + later_s),
                validity: Duration::from_secs(400),
            })
        };
        [
            Command::RequireKyc(require(n)),
            start_kyc(h_payto, "id", "0"),
            Command::SubmitKyc(submit),
            decide("alice", 0),
            decide("alice", 1),
            decide("bob", 2),
        ]
        .map(doing)
        .to_vec()
    })
}

/// Many steps in groups, with customers who are identified.
pub(super) fn limited_ops(groups: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    let identifying = identifying().prop_map(|command| vec![doing(command)]);
    let one = prop_oneof![16 => ops(1..6), 4 => identifying, 1 => form()];
    prop::collection::vec(one, groups).prop_map(|groups| groups.concat())
}

/// A purse with one coin.
fn send(n: u8, coin_n: u8, amount: &str) -> PurseCreate {
    purse(n, purse_terms(n, false), vec![purse_coin(coin_n, denom_of(coin_n), amount)])
}

/// A purse that is created and deleted, for sequences that are written by hand.
pub(super) fn sent_and_deleted(coin_n: u8, amount: &str) -> [Command; 2] {
    [Command::PurseCreate(send(0, coin_n, amount)), refund_purse(0, None, &[coin_n], false)]
}

/// A coin's deposit, for sequences that are written by hand.
pub(super) fn pay(n: u8, amount: &str, contract_n: u8, deadlines: (u64, u64)) -> Deposit {
    deposit(&[(n, denom_of(n), amount)], (0, contract_n, 0), deadlines)
}
