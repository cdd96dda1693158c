//! Looks for acknowledged operations of customers during the load, and repeats them.
//!
//! It first looks for them with requests that change nothing, since a repetition could make good a loss: a
//! coin's history in the refusal when it is offered again, a reserve's balance, the fresh coins of a reveal.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use batzen_crypto::{BlindedDenomSignature, EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_protocol::api::exchange::{BlindSignatures, CoinHistoryItem, LinkEntry, PurseStatus};
use batzen_protocol::{Amount, Money, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::crash::coins::{CURRENCY, Shop, plus};
use crate::crash::customers::{Effect, Load};
use crate::crash::log::{Entry, Kind};
use crate::crash::proof::{each, offer_again, repeat};

/// The number of entries audited together.
const BATCH: u64 = 64;

/// The kinds of requests that move money.
const MONEY: [Kind; 7] = [
    Kind::Withdraw,
    Kind::Deposit,
    Kind::Melt,
    Kind::Reveal,
    Kind::Refund,
    Kind::PurseCreate,
    Kind::PurseMerge,
];

/// The trace of an operation in the history of a coin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Deposit { contract: HashCode },
    Melt { rc: HashCode },
    Refund { contract: HashCode, number: u64 },
    Purse { purse: EddsaPublicKey },
}

impl Mark {
    fn is(self, item: &CoinHistoryItem) -> bool {
        match (self, item) {
            (Self::Deposit { contract }, CoinHistoryItem::Deposit(item)) => item.h_contract_terms == contract,
            (Self::Melt { rc }, CoinHistoryItem::Melt(item)) => item.rc == rc,
            (Self::Refund { contract, number }, CoinHistoryItem::Refund(item)) => {
                item.h_contract_terms == contract && item.rtransaction_id == number
            }
            (Self::Purse { purse }, CoinHistoryItem::PurseDeposit(item)) => {
                item.purse_pub == purse && !item.refunded
            }
            _ => false,
        }
    }
}

/// The relevant part of a reserve's status.
#[derive(Deserialize)]
struct Balance {
    balance: Amount,
}

/// Something to audit.
enum Question {
    /// A reserve, and the least amount withdrawn from it.
    Reserve { reserve: EddsaPublicKey, withdrawn: Money },
    /// A spent coin, and the marks that its history must contain, each once.
    Coin { coin: EddsaPublicKey, marks: Vec<Mark> },
    /// A purse that was paid out.
    Merge { purse: EddsaPublicKey },
    /// A coin that was refreshed, and the signatures of the fresh coins.
    Link { coin: EddsaPublicKey, ev_sigs: Vec<BlindedDenomSignature> },
}

pub(super) struct Auditor {
    load: Arc<Load>,
    stranger: Arc<Shop>,
    withdrawn: HashMap<EddsaPublicKey, Money>,
    marks: HashMap<EddsaPublicKey, Vec<Mark>>,
}

impl Auditor {
    pub(super) fn new(load: &Arc<Load>) -> Self {
        Self {
            load: Arc::clone(load),
            stranger: Arc::new(Shop::new("stranger")),
            withdrawn: HashMap::new(),
            marks: HashMap::new(),
        }
    }

    /// Audits acknowledged operations, from the start of `places` on. Returns how far it got, and all
    /// problems.
    pub(super) async fn audit(&mut self, places: Range<u64>) -> (u64, Vec<String>) {
        let to = places.end.min(places.start + BATCH);
        let entries = self.load.log.acknowledged_in(places.start..to);
        let mut problems = self.look(&entries).await;
        problems.extend(repeat(&self.load, entries).await);
        (to, problems)
    }

    async fn look(&mut self, entries: &[Entry<Effect>]) -> Vec<String> {
        let mut questions = Vec::new();
        let (mut reserves, mut coins) = (Vec::new(), Vec::new());
        for entry in entries {
            let answer = entry.answer.as_ref().expect("it was acknowledged");
            let contract_mark = |contract| Mark::Deposit { contract };
            match &entry.effect {
                Effect::Nothing => {}
                Effect::Withdraw { reserve, coins } => {
                    let denom = |hash: &HashCode| self.load.denoms.iter().find(|denom| denom.hash == *hash);
                    let sum = self.withdrawn.entry(*reserve).or_default();
                    for (_, denom_hash) in coins {
                        *sum = plus(*sum, denom(denom_hash).expect("it was offered").cost());
                    }
                    reserves.push(*reserve);
                }
                Effect::Deposit { contract, coins: paid, .. } => {
                    for (coin, _) in paid {
                        self.marks.entry(*coin).or_default().push(contract_mark(*contract));
                        coins.push(*coin);
                    }
                }
                Effect::Melt { coin, rc, .. } => {
                    self.marks.entry(*coin).or_default().push(Mark::Melt { rc: *rc });
                    coins.push(*coin);
                }
                Effect::Refund { coin, contract, number, .. } => {
                    let mark = Mark::Refund { contract: *contract, number: *number };
                    self.marks.entry(*coin).or_default().push(mark);
                    coins.push(*coin);
                }
                Effect::PurseCreate { purse, coins: paid, .. } => {
                    for (coin, _) in paid {
                        self.marks.entry(*coin).or_default().push(Mark::Purse { purse: *purse });
                        coins.push(*coin);
                    }
                }
                Effect::PurseMerge { purse, .. } => questions.push(Question::Merge { purse: *purse }),
                Effect::Reveal { coin, .. } => {
                    let signed = BlindSignatures::deserialize(&answer.body).unwrap().ev_sigs;
                    let ev_sigs = signed.into_iter().map(|item| item.ev_sig).collect();
                    questions.push(Question::Link { coin: *coin, ev_sigs });
                }
            }
        }
        reserves.sort_unstable();
        reserves.dedup();
        coins.sort_unstable();
        coins.dedup();
        questions.extend(
            reserves
                .into_iter()
                .map(|reserve| Question::Reserve { reserve, withdrawn: self.withdrawn[&reserve] }),
        );
        questions
            .extend(coins.into_iter().map(|coin| Question::Coin { coin, marks: self.marks[&coin].clone() }));
        let (load, stranger) = (Arc::clone(&self.load), Arc::clone(&self.stranger));
        each(questions, move |question| answer(Arc::clone(&load), Arc::clone(&stranger), question)).await
    }

    /// Checks that operations that never happened are found.
    pub(super) async fn assert_finds_plants(&mut self) {
        let acknowledged = self.load.log.acknowledged_in(0..self.load.log.acknowledged());
        for kind in MONEY {
            let mut entry =
                acknowledged.iter().rev().find(|entry| entry.request.kind == kind).unwrap().clone();
            match &mut entry.effect {
                // Everything credited was withdrawn again, and more.
                Effect::Withdraw { coins, .. } => *coins = vec![coins[0]; 10_000],
                Effect::Deposit { contract, .. } | Effect::Refund { contract, .. } => {
                    *contract = HashCode::random();
                }
                Effect::Melt { rc, .. } => *rc = HashCode::random(),
                Effect::Reveal { .. } => {
                    let answer = entry.answer.as_mut().expect("it was acknowledged");
                    answer.body["ev_sigs"].as_array_mut().expect("a list of signatures").pop();
                }
                Effect::PurseCreate { purse, .. } | Effect::PurseMerge { purse, .. } => {
                    *purse = EddsaPrivateKey::generate().public_key();
                }
                Effect::Nothing => unreachable!("these kinds move money"),
            }
            let found = self.look(&[entry]).await;
            assert!(!found.is_empty(), "a {kind:?} that never happened was not found");
        }
    }
}

async fn get<T: DeserializeOwned>(load: &Load, path: &str) -> Result<T, String> {
    loop {
        let reply = load.client.get_json(format!("{}{path}", load.base_url)).await;
        match reply {
            Ok(reply) if reply.status >= 500 || reply.status == 429 => {}
            Ok(reply) if reply.status == 200 => return reply.json().map_err(|error| error.to_string()),
            Ok(reply) => return Err(format!("{path}: lost: HTTP {}", reply.status)),
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error.to_string()),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn answer(load: Arc<Load>, stranger: Arc<Shop>, question: Question) -> Result<(), String> {
    match question {
        Question::Reserve { reserve, withdrawn } => {
            let status: Balance = get(&load, &format!("reserves/{reserve}")).await?;
            let balance = status.balance.money_in(CURRENCY).map_err(|error| error.to_string())?;
            let paid_in = load.credits.lock().unwrap().iter().find(|(known, _)| *known == reserve).unwrap().1;
            let merged = load.asked.lock().unwrap().get(&reserve).copied().unwrap_or(Money::ZERO);
            let credit = plus(paid_in, merged);
            if plus(balance, withdrawn) <= credit {
                return Ok(());
            }
            Err(format!(
                "a withdrawal was lost: reserve {reserve} of {credit} has {balance} after {withdrawn} was withdrawn"
            ))
        }
        Question::Coin { coin, marks } => {
            let (held, conflict) = offer_again(&load, &stranger, coin).await?;
            held.proven_rest(&conflict.history).map_err(|error| format!("coin {coin}: {error}"))?;
            for mark in marks {
                match conflict.history.iter().filter(|item| mark.is(item)).count() {
                    0 => return Err(format!("{mark:?} of coin {coin} was lost: {:?}", conflict.history)),
                    1 => {}
                    _ => {
                        return Err(format!(
                            "{mark:?} of coin {coin} is there twice: {:?}",
                            conflict.history
                        ));
                    }
                }
            }
            Ok(())
        }
        Question::Merge { purse } => {
            let status: PurseStatus = get(&load, &format!("purses/{purse}/merge")).await?;
            match status.merge_timestamp {
                Some(time) if time != Timestamp::NEVER => Ok(()),
                _ => Err(format!("the merge of purse {purse} was lost")),
            }
        }
        Question::Link { coin, ev_sigs } => {
            let entries: Vec<LinkEntry> = get(&load, &format!("coins/{coin}/link")).await?;
            let is_it = |entry: &&LinkEntry| entry.new_coins.iter().map(|coin| &coin.ev_sig).eq(&ev_sigs);
            match entries.iter().filter(is_it).count() {
                0 => Err(format!("a reveal of coin {coin} was lost")),
                1 => Ok(()),
                _ => Err(format!("a reveal of coin {coin} is there twice")),
            }
        }
    }
}
