//! The proofs made over HTTP: every request gets the same answer again, and every spent coin is refused.

use std::collections::HashMap;
use std::sync::Arc;

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::api::errors::CoinConflict;
use batzen_protocol::{ErrorCode, Money};
use serde::Deserialize;
use serde_json::Value;

use crate::crash::coins::{Coin, Contract, Shop, minus, plus};
use crate::crash::customers::{Effect, Load, spent};
use crate::crash::log::{Answer, Entry, Kind, Request};

/// The number of concurrent requests.
const AT_ONCE: usize = 8;

/// Runs a job for each item, several at the same time; returns all problems.
pub(crate) async fn each<T, F>(items: Vec<T>, job: impl Fn(T) -> F + Send + Sync + 'static) -> Vec<String>
where
    T: Send + 'static,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let job = Arc::new(job);
    let items = Arc::new(std::sync::Mutex::new(items));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (job, items) = (Arc::clone(&job), Arc::clone(&items));
        tasks.spawn(async move {
            let mut problems = Vec::new();
            loop {
                let next = items.lock().unwrap().pop();
                let Some(item) = next else { break problems };
                problems.extend(job(item).await.err());
            }
        });
    }
    let mut problems = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        problems.extend(ended.unwrap());
    }
    problems
}

/// The part of an answer that repetitions have, too. Confirmations about purses say how things are now.
fn lasting(kind: Kind, body: &Value) -> Value {
    let mut body = body.clone();
    if let (Kind::PurseCreate | Kind::PurseMerge, Some(members)) = (kind, body.as_object_mut()) {
        members.retain(|name, _| !name.starts_with("exchange_"));
    }
    body
}

/// Repeats every acknowledged request byte for byte, and returns all answers that differ.
pub(crate) async fn repeat(load: &Arc<Load>, entries: Vec<Entry<Effect>>) -> Vec<String> {
    let load = Arc::clone(load);
    let acknowledged = entries.into_iter().filter(Entry::is_acknowledged).collect();
    each(acknowledged, move |entry| {
        let load = Arc::clone(&load);
        async move {
            let answer = load.ask(&entry.request).await;
            let is_same = entry.answer.as_ref().is_some_and(|before| {
                before.status == answer.status
                    && lasting(entry.request.kind, &before.body) == lasting(entry.request.kind, &answer.body)
            });
            if is_same {
                return Ok(());
            }
            Err(format!("{} was answered by {:?}, now by {answer:?}", entry.request.path, entry.answer))
        }
    })
    .await
}

/// Offers every spent coin to a new shop: it must be refused, with a history that proves why. Returns the
/// number of coins, and all problems.
pub(crate) async fn overspend(load: &Arc<Load>, entries: &[Entry<Effect>]) -> (usize, Vec<String>) {
    let effects = entries.iter().filter(|entry| entry.is_acknowledged()).map(|entry| entry.effect.clone());
    let spent: HashMap<EddsaPublicKey, (Money, Money)> = spent(effects, &load.coins.lock().unwrap());
    let stranger = Arc::new(Shop::new("stranger"));
    let count = spent.len();
    let load = Arc::clone(load);
    let job = move |(coin_pub, (debits, credits))| {
        let (load, stranger) = (Arc::clone(&load), Arc::clone(&stranger));
        async move {
            let (coin, conflict) = offer_again(&load, &stranger, coin_pub).await?;
            let value = coin.denom.value;
            let left =
                coin.proven_rest(&conflict.history).map_err(|error| format!("{error}: {conflict:?}"))?;
            if left != minus(plus(value, credits), debits) || left >= value {
                return Err(format!(
                    "coin {coin_pub} of {value}: {debits} out, {credits} back, but proven {left}"
                ));
            }
            Ok(())
        }
    };
    (count, each(spent.into_iter().collect(), job).await)
}

/// Offers a spent coin to a new shop. Returns the coin, and the proof in the refusal.
pub(crate) async fn offer_again(
    load: &Load,
    stranger: &Shop,
    coin_pub: EddsaPublicKey,
) -> Result<(Arc<Coin>, CoinConflict), String> {
    let coin = Arc::clone(&load.coins.lock().unwrap()[&coin_pub]);
    let body = coin.deposit(stranger, &Contract::due(), coin.denom.value);
    let request = Request {
        kind: Kind::Deposit,
        path: format!("coins/{coin_pub}/deposit"),
        body: serde_json::to_vec(&body).unwrap(),
    };
    let Answer { status, body } = load.ask(&request).await;
    let refused = ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS.to_u32();
    if status != 409 || body["code"] != refused {
        return Err(format!("coin {coin_pub} was accepted again: {status} {body}"));
    }
    let conflict = CoinConflict::deserialize(&body).map_err(|error| format!("{error}: {body}"))?;
    if conflict.coin_pub != coin_pub || conflict.h_denom_pub != coin.denom.hash {
        return Err(format!("a proof about another coin: {body}"));
    }
    Ok((coin, conflict))
}
