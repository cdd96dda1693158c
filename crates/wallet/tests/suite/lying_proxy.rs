//! Goal: if a proxy between a wallet and its exchange alters answers at random, the wallet loses no money
//! without showing evidence.
//!
//! Method: random lives of a wallet, while a proxy forwards requests and alters some of the answers. It
//! changes, removes or repeats a member of the JSON, or swaps it with that of an earlier answer; it changes
//! the status; it replays an earlier answer; or it answers without asking the exchange. Then the proxy
//! becomes honest, the wallet runs, and the books of both sides must agree coin by coin, except where the
//! wallet shows a dispute.
//!
//! `BATZEN_SOAK_FACTOR=100` plays 100 times as many lives.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use batzen_protocol::{Money, MoneySum};
use batzen_testkit::world::{EXCHANGE, World, check_history};
use batzen_wallet::Wallet;
use batzen_wallet::core::coin::CoinSource;
use batzen_wallet::core::http::HttpResponse;
use batzen_wallet::core::purse::{PartState, PursePart};
use batzen_wallet::core::state::OpKind;
use proptest::prelude::*;
use serde_json::Value;

use crate::deeds::{Deed, Life, any_deed};

const STATUSES: [u16; 9] = [200, 204, 400, 403, 404, 409, 410, 451, 503];
const CODES: [u32; 18] =
    [21, 26, 1003, 1005, 1009, 1010, 1012, 1025, 1026, 1031, 1150, 1175, 1305, 1353, 1555, 1676, 1679, 1976];

/// The change to an answer. The numbers choose a member, an earlier answer, a value.
#[derive(Clone, Debug)]
enum Lie {
    Change { member: usize, how: usize },
    Remove { member: usize },
    Repeat { member: usize },
    Swap { member: usize, earlier: usize },
    Status { which: usize },
    Code { which: usize },
    Replay { earlier: usize },
    // Answers without asking the exchange.
    Invent { earlier: usize },
}

fn lie() -> impl Strategy<Value = Lie> {
    let n = any::<usize>;
    prop_oneof![
        4 => (n(), n()).prop_map(|(member, how)| Lie::Change { member, how }),
        1 => n().prop_map(|member| Lie::Remove { member }),
        1 => n().prop_map(|member| Lie::Repeat { member }),
        2 => (n(), n()).prop_map(|(member, earlier)| Lie::Swap { member, earlier }),
        2 => n().prop_map(|which| Lie::Status { which }),
        2 => n().prop_map(|which| Lie::Code { which }),
        2 => n().prop_map(|earlier| Lie::Replay { earlier }),
        2 => n().prop_map(|earlier| Lie::Invent { earlier }),
    ]
}

/// The paths of all members and items in a value.
fn paths(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = format!("{path}/{name}");
                out.push(path.clone());
                paths(member, &path, out);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}/{index}");
                out.push(path.clone());
                paths(item, &path, out);
            }
        }
        _ => {}
    }
}

fn pick<T>(items: &[T], number: usize) -> Option<&T> {
    if items.is_empty() { None } else { items.get(number % items.len()) }
}

/// Another value of the same type.
fn changed(value: &Value, how: usize) -> Value {
    match value {
        Value::Null => Value::Bool(true),
        Value::Bool(flag) => Value::Bool(!flag),
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or(0);
            [0, 1, number.wrapping_add(1), number.wrapping_sub(1), u64::MAX][how % 5].into()
        }
        Value::String(text) => match text.split_once(':') {
            Some(("KUDOS", _)) => {
                let sums =
                    ["KUDOS:0", "KUDOS:0.01", "KUDOS:1", "KUDOS:7.99", "KUDOS:4503599627370496", "EUR:1"];
                sums[how % sums.len()].into()
            }
            _ => {
                let mut bytes = text.clone().into_bytes();
                if bytes.is_empty() {
                    return "0".into();
                }
                let position = how % bytes.len();
                bytes[position] = if bytes[position] == b'0' { b'1' } else { b'0' };
                String::from_utf8_lossy(&bytes).into_owned().into()
            }
        },
        Value::Array(items) => items.iter().rev().cloned().collect(),
        Value::Object(_) => Value::Null,
    }
}

fn alter_member(
    response: &HttpResponse,
    member: usize,
    alter: impl FnOnce(&mut Value, &str),
) -> HttpResponse {
    let Ok(mut value) = serde_json::from_slice::<Value>(&response.body) else { return response.clone() };
    let mut all = Vec::new();
    paths(&value, "", &mut all);
    if let Some(path) = pick(&all, member) {
        alter(&mut value, path);
    }
    HttpResponse { body: serde_json::to_vec(&value).unwrap(), ..response.clone() }
}

fn falsified(lie: &Lie, response: &HttpResponse, earlier_answers: &[HttpResponse]) -> HttpResponse {
    match lie {
        Lie::Change { member, how } => alter_member(response, *member, |value, path| {
            let target = value.pointer_mut(path).unwrap();
            *target = changed(target, *how);
        }),
        Lie::Remove { member } => alter_member(response, *member, |value, path| {
            let (parent, name) = path.rsplit_once('/').unwrap();
            match value.pointer_mut(parent).unwrap() {
                Value::Object(members) => drop(members.remove(name)),
                Value::Array(items) => drop(items.remove(name.parse().unwrap())),
                _ => {}
            }
        }),
        Lie::Repeat { member } => alter_member(response, *member, |value, path| {
            let (parent, name) = path.rsplit_once('/').unwrap();
            if let Value::Array(items) = value.pointer_mut(parent).unwrap() {
                let item = items[name.parse::<usize>().unwrap()].clone();
                items.push(item);
            }
        }),
        Lie::Swap { member, earlier } => alter_member(response, *member, |value, path| {
            let other = pick(earlier_answers, *earlier)
                .and_then(|answer| serde_json::from_slice::<Value>(&answer.body).ok())
                .and_then(|answer| answer.pointer(path).cloned());
            if let Some(other) = other {
                *value.pointer_mut(path).unwrap() = other;
            }
        }),
        Lie::Status { which } => {
            HttpResponse { status: *pick(&STATUSES, *which).unwrap(), ..response.clone() }
        }
        Lie::Code { which } => {
            let code = *pick(&CODES, *which).unwrap();
            let status = match code {
                21 | 1005 | 1025 => 404,
                26 | 1305 => 400,
                1009 | 1010 | 1026 | 1031 | 1555 | 1976 => 410,
                _ => 409,
            };
            let mut value: Value = serde_json::from_slice(&response.body).unwrap_or_default();
            if let Value::Object(members) = &mut value {
                members.insert("code".to_owned(), code.into());
            }
            HttpResponse { status, body: serde_json::to_vec(&value).unwrap(), ..response.clone() }
        }
        Lie::Replay { earlier } | Lie::Invent { earlier } => {
            pick(earlier_answers, *earlier).unwrap_or(response).clone()
        }
    }
}

#[derive(Default)]
struct Memory {
    requests: usize,
    told_so_far: usize,
    /// Genuine answers so far.
    earlier: Vec<HttpResponse>,
    /// Lie about the next answer.
    next: Option<Lie>,
}

/// Alters about one in `rate` answers of the exchange.
fn proxy(world: &World, lies: &[Lie], rate: usize) {
    let lies = lies.to_vec();
    let memory = Arc::new(Mutex::new(Memory::default()));
    let of_requests = Arc::clone(&memory);
    world.network.answer_instead(move |request| {
        let mut memory = of_requests.lock().unwrap();
        memory.requests += 1;
        if !request.url.starts_with(EXCHANGE) || !memory.requests.is_multiple_of(rate) {
            return None;
        }
        let lie = lies.get(memory.told_so_far).cloned();
        memory.told_so_far += usize::from(lie.is_some());
        if let (Some(lie @ Lie::Invent { .. }), false) = (&lie, memory.earlier.is_empty()) {
            return Some(falsified(lie, &HttpResponse::default(), &memory.earlier));
        }
        memory.next = lie;
        None
    });
    world.network.change_answers(move |request, response| {
        if !request.url.starts_with(EXCHANGE) {
            return response;
        }
        let mut memory = memory.lock().unwrap();
        let lie = memory.next.take();
        let answer = lie.map_or_else(|| response.clone(), |lie| falsified(&lie, &response, &memory.earlier));
        memory.earlier.push(response);
        answer
    });
}

async fn play(deeds: &[Deed], lies: &[Lie], rate: usize, seed: u64) {
    let mut life = Life::begin(seed).await;
    proxy(&life.world, lies, rate);
    life.live(deeds).await;
    let Life { world, wallet, refunds, .. } = life;
    wallet.run_pending().await.unwrap();
    world.network.be_honest();
    wallet.add_exchange(EXCHANGE).await.unwrap();
    // One dispute may have hidden another.
    for _ in 0..4 {
        wallet.retry_disputed().unwrap();
        wallet.run_pending().await.unwrap();
        // A merchant's permission that was wrongly refused can be sent again.
        for (h_contract_terms, permissions) in &refunds {
            let _ = wallet.refund(h_contract_terms, permissions).await;
        }
    }
    check_history(&wallet);
    check(&world, &wallet);
}

/// Every coin and every reserve agrees with the exchange, or is in a dispute that the wallet shows.
fn check(world: &World, wallet: &Wallet) {
    let totals = world.exchange.check_conservation();
    let evidence = wallet.evidence();
    let shown: BTreeSet<u64> =
        evidence.iter().filter(|item| item.settled.is_none()).map(|item| item.id).collect();
    let mut held = MoneySum::ZERO;
    let transactions = wallet.transactions(true).unwrap();
    wallet.with_state(|state| {
        let open: Vec<_> = state.open_operations().collect();
        for operation in &open {
            if let Some(dispute) = operation.dispute {
                assert!(shown.contains(&dispute.evidence), "evidence of a dispute is shown");
            }
        }
        let in_work = |coin_pub| {
            open.iter().any(|operation| match &operation.kind {
                OpKind::Payment(record) => record.coins.iter().any(|coin| coin.coin_pub == coin_pub),
                OpKind::Refresh(record) => record.old_coin_pub == coin_pub,
                OpKind::Recoup(record) => record.coin_pub == coin_pub,
                OpKind::Refund(record) => record.items.iter().any(|item| item.coin_pub == coin_pub),
                OpKind::PursePayment(record) => record.coins.iter().any(|part| part.coin_pub == coin_pub),
                OpKind::Purchase(record) => record.spent().any(|part| part.coin_pub == coin_pub),
                OpKind::Withdrawal(_) | OpKind::PurseIncome(_) | OpKind::PickUp(_) | OpKind::Tip(_) => false,
            })
        };
        // The protocol does not sign the answer to a recoup-refresh, and provides no history of the old coin.
        // A false answer is found when the old coin is refreshed, unless its value is too small for that.
        let is_recouped = |coin_pub| {
            state.operations.values().any(|operation| match &operation.kind {
                OpKind::Recoup(record) => match state.coins[&record.coin_pub].source {
                    CoinSource::Refresh { old_coin_pub, .. } => {
                        [record.coin_pub, old_coin_pub].contains(&coin_pub)
                    }
                    CoinSource::Withdrawal { .. } | CoinSource::Tip { .. } => false,
                },
                _ => false,
            })
        };
        // If the exchange has booked an operation that it refused, the next use of the coin reveals it, with
        // evidence. A coin whose value is too small for a refresh waits for its next use.
        let is_refused = |coin_pub| {
            state.operations.values().any(|operation| match &operation.kind {
                OpKind::Payment(record) => record.refused.iter().any(|part| part.coin_pub == coin_pub),
                OpKind::PursePayment(record) => {
                    let is_back = |part: &&PursePart| part.state != PartState::Spent;
                    let mut back = record.coins.iter().filter(is_back).chain(&record.refused);
                    back.any(|part| part.coin_pub == coin_pub)
                }
                _ => false,
            })
        };
        for coin in state.coins.values() {
            let value = world.exchange.value(&coin.h_denom_pub);
            held = held.checked_add(value).unwrap();
            let remaining = world.exchange.coin_remaining(&coin.coin_pub).unwrap_or(value);
            assert!(
                remaining == coin.remaining
                    || in_work(coin.coin_pub)
                    || is_refused(coin.coin_pub)
                    || is_recouped(coin.coin_pub),
                "coin {} ({:?}): the exchange has {remaining}, the wallet {}\n{:#?}\n{evidence:#?}",
                coin.coin_pub,
                coin.status,
                coin.remaining,
                transactions,
            );
        }
        if open.is_empty() {
            assert_eq!(held, totals.issued, "every coin that was signed is in the wallet");
            assert!(shown.is_empty(), "nothing is disputed");
        }
        // The wallet knows the remainder of a reserve and shows it.
        for (reserve_pub, balance) in &world.exchange.reserves() {
            let of_reserve = state.operations.values().filter_map(|operation| match &operation.kind {
                OpKind::Withdrawal(record) if record.reserve_pub == *reserve_pub => Some((operation, record)),
                _ => None,
            });
            let (mut known, mut leftover) = (false, Money::ZERO);
            for (operation, record) in of_reserve {
                known |= operation.finished.is_none();
                leftover = leftover.checked_add(record.leftover).unwrap();
            }
            assert!(
                known || leftover >= *balance,
                "{balance} are forgotten in reserve {reserve_pub}\n{transactions:#?}\n{evidence:#?}"
            );
        }
    });
}

fn config() -> ProptestConfig {
    let factor: u32 = std::env::var("BATZEN_SOAK_FACTOR").map_or(1, |factor| factor.parse().unwrap());
    ProptestConfig { cases: 96 * factor, max_shrink_iters: 400, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_false_answer_costs_money_without_evidence(
        deeds in prop::collection::vec(any_deed(), 2..12),
        lies in prop::collection::vec(lie(), 1..12),
        rate in 1usize..8,
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(&deeds, &lies, rate, seed));
    }
}
