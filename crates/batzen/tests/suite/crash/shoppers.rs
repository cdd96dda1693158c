//! Customers of a shop whose merchant backend is killed: they order, claim, pay, get refunds and give up, repeat
//! every request until it is answered, and record what they know. Hasty ones give a payment up before it is answered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode};
use batzen_http::client::{Client, ClientError, Reply};
use batzen_protocol::Money;
use batzen_protocol::api::merchant::{
    AbortResponse, ClaimResponse, ContractTerms, PayRequest, PayResponse, PickUpRefundResponse, RefundResult,
};
use batzen_protocol::canonical::contract_hash;
use batzen_protocol::signatures::{ExchangeConfirmRefund, MerchantPaymentOk, SignedMessage};
use serde_json::{Value, json};

use crate::common::PATIENCE;
use crate::common::backend::TOKEN;
use crate::common::customer::Customer;
use crate::crash::coins::{CURRENCY, Coin, Denom, minus, money, plus};
use crate::crash::customers::Dice;

/// The most coins of a payment.
const COINS_MAX: u64 = 3;
/// The longest time that hasty customers wait for the answer to a payment, in milliseconds.
const HASTE_MS: u64 = 40;
/// The pause before a repetition.
const PAUSE: Duration = Duration::from_millis(20);

/// A refund as the exchange has confirmed it: coin, number and amount.
pub(crate) type Refund = (EddsaPublicKey, u64, Money);

/// The end of an order.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Paid, with the shop's receipt and the refunds that were picked up.
    Paid { receipt: EddsaSignature, refunds: Vec<Refund> },
    /// Given up.
    Aborted { refunds: Vec<Refund> },
}

/// A customer's knowledge of an order.
#[derive(Clone)]
pub(crate) struct Bought {
    pub id: String,
    pub contract: HashCode,
    pub merchant_pub: EddsaPublicKey,
    /// The coins that the exchange has taken for it, and what they paid.
    pub coins: Vec<(Arc<Coin>, Money)>,
    /// The request that paid, or offered what did not pay.
    pub offer: PayRequest,
    pub end: End,
}

impl Bought {
    pub(crate) fn refunds(&self) -> &[Refund] {
        let (End::Paid { refunds, .. } | End::Aborted { refunds }) = &self.end;
        refunds
    }

    /// Keeps the coins that got something back. Returns the others.
    fn keep(&mut self, refunds: &[Refund]) -> Vec<(Arc<Coin>, Money)> {
        let is_back =
            |(coin, _): &(Arc<Coin>, Money)| refunds.iter().any(|(coin_pub, ..)| *coin_pub == coin.key_pub);
        let (kept, others) = std::mem::take(&mut self.coins).into_iter().partition(is_back);
        self.coins = kept;
        others
    }
}

/// A customer's coin, and what is left on it.
struct Purse {
    coin: Arc<Coin>,
    left: Money,
}

/// The state that all customers use.
pub(crate) struct Street {
    pub client: Client,
    pub backend_url: String,
    pub exchange_url: String,
    pub denoms: Vec<Arc<Denom>>,
    pub customer: Customer,
    /// The customers' knowledge at the end.
    pub bought: Mutex<Vec<Bought>>,
    /// Orders that hasty customers have given up. What came back is known only when nothing is under way any more.
    pub hasty: Mutex<Vec<Bought>>,
    /// Coins withdrawn.
    pub coins: Mutex<Vec<Arc<Coin>>>,
    /// Requests whose answers were lost.
    pub lost: AtomicU64,
    pub ends: AtomicBool,
}

impl Street {
    /// Sends a request until it is answered. The backend's own troubles are no answer.
    async fn insist(&self, path: &str, body: Option<&Value>) -> Reply {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let url = format!("{}{path}", self.backend_url);
            let call = match body {
                Some(body) => self.client.post(url).json(body),
                None => self.client.get(url),
            };
            match call.header("authorization", &format!("Bearer {TOKEN}")).send().await {
                Ok(reply) if reply.status < 500 => return reply,
                Ok(reply) => assert!(Instant::now() < deadline, "{path}: {reply:?}"),
                Err(error) => {
                    if !matches!(error, ClientError::Connect { .. }) {
                        self.lost.fetch_add(1, Ordering::Relaxed);
                    }
                    assert!(Instant::now() < deadline, "{path}: {error}");
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.insist(path, None).await.ok().unwrap()
    }

    /// Orders and claims.
    async fn contract(&self, id: &str, amount: Money) -> (ContractTerms, HashCode) {
        let order = json!({ "order_id": id, "amount": amount.of(CURRENCY), "summary": "a book" });
        let wish = json!({ "order": order, "refund_delay": { "d_us": 3_600_000_000_u64 } });
        let made: Value = self.insist("private/orders", Some(&wish)).await.ok().unwrap();
        let nonce = EddsaPrivateKey::generate().public_key().to_string();
        let wish = json!({ "nonce": nonce, "token": made["token"] });
        let reply = self.insist(&format!("orders/{id}/claim"), Some(&wish)).await;
        let claimed: ClaimResponse = reply.ok().unwrap();
        let contract = contract_hash(&claimed.contract_terms).unwrap();
        (serde_json::from_value(claimed.contract_terms).unwrap(), contract)
    }

    async fn offer(&self, id: &str, offer: &PayRequest) -> Reply {
        let body = serde_json::to_value(offer).unwrap();
        self.insist(&format!("orders/{id}/pay"), Some(&body)).await
    }

    /// The receipt of a paid order; the same for every repetition.
    pub(crate) async fn receipt(&self, bought: &Bought) -> EddsaSignature {
        let PayResponse { sig } = self.offer(&bought.id, &bought.offer).await.ok().unwrap();
        let message = MerchantPaymentOk { h_contract_terms: bought.contract };
        assert!(message.verify(&bought.merchant_pub, &sig), "{}", bought.id);
        sig
    }

    /// Picks up the refunds of an order.
    pub(crate) async fn pick_up(&self, bought: &Bought) -> Vec<Refund> {
        let body = json!({ "h_contract": bought.contract });
        let reply = self.insist(&format!("orders/{}/refund", bought.id), Some(&body)).await;
        let answer: PickUpRefundResponse = reply.ok().unwrap();
        let confirmed = |entry: &batzen_protocol::api::merchant::RefundEntry| {
            let money = entry.refund_amount.money;
            self.confirmed(bought, (entry.coin_pub, entry.rtransaction_id, money), &entry.result)
                .unwrap_or_else(|| panic!("{}: {entry:?}", bought.id))
        };
        answer.refunds.iter().map(confirmed).collect()
    }

    /// A refund, if the exchange has signed it.
    fn confirmed(&self, bought: &Bought, refund: Refund, result: &RefundResult) -> Option<Refund> {
        let RefundResult::Success { exchange_sig, exchange_pub, .. } = result else { return None };
        let message = ExchangeConfirmRefund {
            h_contract_terms: bought.contract,
            coin_pub: refund.0,
            merchant_pub: bought.merchant_pub,
            rtransaction_id: refund.1,
            refund_amount: refund.2.of(CURRENCY),
        };
        assert!(message.verify(exchange_pub, exchange_sig), "{}", bought.id);
        Some(refund)
    }

    /// The answer to giving up an order.
    async fn give_up(&self, bought: &Bought) -> Reply {
        let coins: Vec<Value> = bought
            .offer
            .coins
            .iter()
            .map(|coin| {
                json!({
                    "coin_pub": coin.coin_pub, "contribution": coin.contribution, "exchange_url": coin.exchange_url,
                })
            })
            .collect();
        let body = json!({ "h_contract": bought.contract, "coins": coins });
        self.insist(&format!("orders/{}/abort", bought.id), Some(&body)).await
    }

    /// Gives up an order: what its offered coins have paid comes back; the others have paid nothing.
    pub(crate) async fn abort(&self, bought: &Bought) -> Vec<Refund> {
        let answer: AbortResponse = self.give_up(bought).await.ok().unwrap();
        assert_eq!(answer.refunds.len(), bought.offer.coins.len());
        let results = bought.offer.coins.iter().zip(&answer.refunds);
        results
            .filter_map(|(coin, result)| {
                if let RefundResult::Failure { exchange_status, .. } = result {
                    assert_eq!(*exchange_status, 404, "{}: {result:?}", bought.id);
                }
                self.confirmed(bought, (coin.coin_pub, 0, coin.contribution.money), result)
            })
            .collect()
    }

    /// Gives up what hasty customers have given up, when nothing is under way any more.
    pub(crate) async fn settle_hasty(&self) {
        let hasty = std::mem::take(&mut *self.hasty.lock().unwrap());
        for mut order in hasty {
            let refunds = self.abort(&order).await;
            order.keep(&refunds);
            order.end = End::Aborted { refunds };
            self.bought.lock().unwrap().push(order);
        }
    }

    /// The coins of a payment, as the wallet offers them.
    fn request(&self, terms: &ContractTerms, contract: HashCode, coins: &[(Arc<Coin>, Money)]) -> PayRequest {
        let coins = coins.iter().map(|(coin, amount)| coin.pay(terms, contract, *amount, &self.exchange_url));
        PayRequest { coins: coins.collect(), session_id: None }
    }

    /// Shops until the street closes.
    pub(crate) async fn shopper(self: Arc<Self>, number: usize, paid_in: &str, mut dice: Dice) {
        let reserve = self.customer.reserve(paid_in).await;
        let (mut with_value, mut spent): (Vec<Purse>, Vec<Arc<Coin>>) = (Vec::new(), Vec::new());
        for turn in 0.. {
            if self.ends.load(Ordering::Acquire) {
                return;
            }
            let mut coins: Vec<(Arc<Coin>, Money)> = Vec::new();
            for _ in 0..=dice.below(COINS_MAX) {
                // A coin that got something back is spent again, which shows that it has it.
                if let Some(purse) = with_value.pop() {
                    coins.push((purse.coin, purse.left));
                    continue;
                }
                let denom = &self.denoms[usize::try_from(dice.below(self.denoms.len() as u64)).unwrap()];
                let coin = Arc::new(self.customer.withdraw(&reserve, denom).await);
                self.coins.lock().unwrap().push(Arc::clone(&coin));
                coins.push((coin, denom.value));
            }
            let amount = Money::checked_sum(coins.iter().map(|(_, amount)| *amount)).unwrap();
            let id = format!("order-{number}-{turn}");
            let stale = spent.last().filter(|_| dice.one_in(5));
            let mut bought = match stale {
                Some(stale) => {
                    let (bought, unspent) = self.offer_stale(&id, amount, coins, stale).await;
                    with_value.extend(unspent.into_iter().map(|(coin, left)| Purse { coin, left }));
                    bought
                }
                None if dice.one_in(4) => match self.hurry(&id, amount, coins, &mut dice).await {
                    Some(bought) => bought,
                    None => continue,
                },
                None => self.buy(&id, amount, coins, dice.one_in(3), &mut dice).await,
            };
            let mut left: BTreeMap<EddsaPublicKey, Purse> = BTreeMap::new();
            for (coin_pub, _, amount) in bought.refunds() {
                let (coin, _) = bought.coins.iter().find(|(coin, _)| coin.key_pub == *coin_pub).unwrap();
                let back = minus(*amount, coin.denom.fee_refund);
                let purse = Purse { coin: Arc::clone(coin), left: Money::ZERO };
                let purse = left.entry(*coin_pub).or_insert(purse);
                purse.left = plus(purse.left, back);
            }
            spent.extend(
                bought
                    .coins
                    .iter()
                    .filter(|(coin, _)| !left.contains_key(&coin.key_pub))
                    .map(|(c, _)| c.clone()),
            );
            // Too little cannot pay its fees.
            with_value.extend(left.into_values().filter(|purse| purse.left >= money("0.1")));
            bought.coins.sort_by_key(|(coin, _)| coin.key_pub);
            self.bought.lock().unwrap().push(bought);
        }
    }

    /// An order as it is before its outcome is known.
    fn undecided(
        id: &str,
        (terms, contract): (&ContractTerms, HashCode),
        coins: Vec<(Arc<Coin>, Money)>,
        offer: PayRequest,
    ) -> Bought {
        let end = End::Aborted { refunds: Vec::new() };
        Bought { id: id.to_owned(), contract, merchant_pub: terms.merchant_pub, coins, offer, end }
    }

    /// Buys, and gets refunds in one or two steps if `is_refunded`.
    async fn buy(
        &self,
        id: &str,
        amount: Money,
        coins: Vec<(Arc<Coin>, Money)>,
        is_refunded: bool,
        dice: &mut Dice,
    ) -> Bought {
        let (terms, contract) = self.contract(id, amount).await;
        let offer = self.request(&terms, contract, &coins);
        let mut bought = Self::undecided(id, (&terms, contract), coins, offer);
        let receipt = self.receipt(&bought).await;
        let mut refunds = Vec::new();
        if is_refunded {
            // A part of one coin first, and sometimes everything after that.
            let smallest = bought.coins.iter().map(|(_, amount)| *amount).min().expect("it has coins");
            for total in [smallest.checked_div(2).unwrap(), amount] {
                let wish = json!({ "refund": total.of(CURRENCY), "reason": "torn" });
                let reply = self.insist(&format!("private/orders/{id}/refund"), Some(&wish)).await;
                assert_eq!(reply.status, 200, "{reply:?}");
                refunds = self.pick_up(&bought).await;
                let sum = Money::checked_sum(refunds.iter().map(|(.., amount)| *amount)).unwrap();
                assert_eq!(sum, total, "{id}: {refunds:?}");
                if dice.one_in(2) {
                    break;
                }
            }
        }
        bought.end = End::Paid { receipt, refunds };
        bought
    }

    /// Offers a coin that is spent beside good ones, and gives the payment up. Returns the coins that paid nothing.
    async fn offer_stale(
        &self,
        id: &str,
        amount: Money,
        coins: Vec<(Arc<Coin>, Money)>,
        stale: &Arc<Coin>,
    ) -> (Bought, Vec<(Arc<Coin>, Money)>) {
        let (terms, contract) = self.contract(id, plus(amount, stale.denom.value)).await;
        let mut offered = coins.clone();
        offered.push((Arc::clone(stale), stale.denom.value));
        let offer = self.request(&terms, contract, &offered);
        let reply = self.offer(id, &offer).await;
        let body: Value = reply.json().unwrap();
        assert_eq!((reply.status, body["code"].as_u64()), (409, Some(2150)), "{id}: {body}");
        let mut bought = Self::undecided(id, (&terms, contract), coins, offer);
        let refunds = self.abort(&bought).await;
        let unspent = bought.keep(&refunds);
        bought.end = End::Aborted { refunds };
        (bought, unspent)
    }

    /// Pays, and gives the payment up if it is not answered at once. `None` if it was given up.
    async fn hurry(
        &self,
        id: &str,
        amount: Money,
        coins: Vec<(Arc<Coin>, Money)>,
        dice: &mut Dice,
    ) -> Option<Bought> {
        let (terms, contract) = self.contract(id, amount).await;
        let offer = self.request(&terms, contract, &coins);
        let mut bought = Self::undecided(id, (&terms, contract), coins, offer);
        let body = serde_json::to_value(&bought.offer).unwrap();
        let call = self.client.post(format!("{}orders/{id}/pay", self.backend_url)).json(&body);
        let patience = Duration::from_millis(dice.below(HASTE_MS));
        // Its answer, if there is one, is asked for again below.
        let _ = tokio::time::timeout(patience, call.send()).await;
        let reply = self.give_up(&bought).await;
        if reply.status == 200 {
            self.hasty.lock().unwrap().push(bought);
            return None;
        }
        assert_eq!(reply.status, 412, "{id}: {reply:?}");
        let receipt = self.receipt(&bought).await;
        bought.end = End::Paid { receipt, refunds: Vec::new() };
        Some(bought)
    }
}
