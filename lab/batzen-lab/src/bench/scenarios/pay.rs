//! `batzen-lab bench pay`: customers pay shops. A shop creates an order at the merchant backend, a wallet claims and pays
//! it with coins that it has, and the shop asks whether it was paid. Some orders are refunded.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode, ShortHash};
use batzen_protocol::api::merchant::{
    ApproveRefundRequest, ClaimRequest, ClaimResponse, ContractTerms, CreateInstanceRequest,
    CreateOrderResponse, InstanceAuth, InstanceSettings, PayCoin, PayRequest, PayResponse,
    PickUpRefundRequest, PickUpRefundResponse, RefundResult,
};
use batzen_protocol::canonical::contract_hash;
use batzen_protocol::signatures::{MerchantContract, MerchantPaymentOk, SignedMessage, WalletCoinDeposit};
use batzen_protocol::{Amount, Duration};
use clap::Args;
use serde::Deserialize;
use serde_json::{Map, json};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::coins::{self, Coin, Reserves};
use crate::bench::load::generator::{Kind, LoadOutcome, Next, Outgoing, Script};
use crate::bench::load::measure::{Backend, Description, Stage, WITHDRAWING, Workload, measure, too_many};
use crate::bench::load::prepared::{Sampling, refusal};
use crate::bench::load::random::{Chooser, Merchants, Numbers, Seed};
use crate::bench::load::wire;
use crate::bench::results::result::Run;
use crate::bench::results::words;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::ceiling::{CipherArgs, CoinOperation, Share};
use crate::bench::scenarios::options::{LoadOptions, RunOptions};
use crate::bench::scenarios::target::Server;
use crate::bench::scenarios::world::{self, CoinKind, Denom, send_all};

/// Value of a coin.
const VALUE: u64 = 1;
/// Reserves from which the set-up withdraws the coins.
const RESERVES: usize = 64;
/// The access token of all shops that a run opens.
const TOKEN: &str = "secret-token:bench-and-secret";
/// Time during which an order can be refunded, and without workers when the exchange pays the shop: after the
/// run.
const LATER: Duration = Duration::from_secs(3_600);
/// One in this many orders has its signatures checked after the run.
const SAMPLE_EVERY: u64 = 16;
/// The most signatures kept per thread.
const FACTS_MAX: usize = 4_000;
const NO_POLICY: HashCode = HashCode::from_bytes([0; 64]);
/// No age commitment.
const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);

/// Kinds of requests.
const ORDER: usize = 0;
const CLAIM: usize = 1;
const PAY: usize = 2;
const STATUS: usize = 3;
const REFUND: usize = 4;
const PICK_UP: usize = 5;

/// Arguments of `batzen-lab bench pay`.
#[derive(Args, Clone, Debug)]
pub struct PayArgs {
    #[command(flatten)]
    cipher: CipherArgs,
    /// Coins in a payment
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=256))]
    coins: u32,
    /// Number of shops at the merchant backend
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000),
          conflicts_with = "merchant")]
    shops: u32,
    /// How customers choose among the shops
    #[arg(long, value_enum, default_value_t = Merchants::Zipf)]
    merchants: Merchants,
    /// Percent of the orders that the shop refunds after the payment
    #[arg(long, value_name = "PERCENT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=100))]
    refunds: u8,
    #[command(flatten)]
    shop: ShopOptions,
    #[command(flatten)]
    load: LoadOptions,
    /// Options of the measurement.
    #[command(flatten)]
    pub run: RunOptions,
}

/// A shop at a merchant backend that runs already.
#[derive(Args, Clone, Debug, Default)]
struct ShopOptions {
    /// Pay this shop at a merchant backend that accepts coins of the exchange of --target:
    /// http://HOST:PORT/ or http://HOST:PORT/instances/SHOP/
    #[arg(long, value_name = "URL", requires = "target", requires = "token_file")]
    merchant: Option<Server>,
    /// File with the access token of that shop
    #[arg(long, value_name = "FILE", requires = "merchant")]
    token_file: Option<PathBuf>,
}

/// The shops that customers pay.
#[derive(Clone)]
struct Shops {
    /// The base path of the only one; none: those that the run opens.
    only: Option<String>,
    /// The access token of each.
    token: String,
}

impl Shops {
    /// The shops of a run with these options.
    fn of(options: &ShopOptions) -> Result<Self> {
        let only = options.merchant.as_ref().map(|server| server.path.trim_end_matches('/').to_owned());
        let token = match &options.token_file {
            None => TOKEN.to_owned(),
            Some(file) => std::fs::read_to_string(file).map_err(BenchError::io(file))?.trim().to_owned(),
        };
        Ok(Self { only, token })
    }

    /// The base path of a shop.
    fn path(&self, shop: usize) -> String {
        self.only.clone().unwrap_or_else(|| shop_path(shop))
    }

    /// Checks that the only shop accepts the token. Backends lock out who guesses for long.
    fn check(&self, backend: SocketAddr) -> Result<()> {
        let request = self.authorized(wire::get(&format!("{}/private/orders", self.path(0))));
        let answer =
            wire::call(backend, &request).map_err(|error| BenchError::set_up("ask the shop", error))?;
        if answer.status == 200 {
            return Ok(());
        }
        Err(BenchError::set_up("the shop refuses the token", refusal(answer.status, &answer.body)))
    }

    /// A request of a shop's own program.
    fn authorized(&self, request: Vec<u8>) -> Vec<u8> {
        wire::with_header(request, "Authorization", &format!("Bearer {}", self.token))
    }
}

/// Runs the scenario.
///
/// # Errors
/// As `measure`, and when the file with the token cannot be read.
pub fn run(args: &PayArgs, context: &Context) -> Result<Run> {
    measure(&mut Pay::new(args)?, &args.load, &args.run, context)
}

/// The load of purchases.
pub(super) struct Pay {
    args: PayArgs,
    seed: Seed,
    shops: Shops,
    chooser: Chooser,
    choices: Numbers,
    reserves: Option<Reserves>,
    /// Orders prepared so far; no number is used twice.
    prepared: u32,
    /// The template from which every second customer orders.
    template: Option<&'static str>,
}

/// The request of the own program of a shop that the run has opened.
pub(super) fn with_token(request: Vec<u8>) -> Vec<u8> {
    Shops { only: None, token: TOKEN.to_owned() }.authorized(request)
}

/// The base path of a shop that the run has opened.
pub(super) fn shop_path(shop: usize) -> String {
    format!("/instances/shop-{shop}")
}

impl Pay {
    fn new(args: &PayArgs) -> Result<Self> {
        let shops = Shops::of(&args.shop)?;
        let args = PayArgs { shops: if shops.only.is_some() { 1 } else { args.shops }, ..args.clone() };
        let seed = args.load.target.seed(args.load.seed).part("pay");
        Ok(Self {
            chooser: Chooser::new(args.merchants, args.shops as usize, seed.numbers("shops")),
            choices: seed.numbers("refunds"),
            reserves: None,
            prepared: 0,
            template: None,
            args,
            seed,
            shops,
        })
    }

    /// Purchases for one coin at some shops. Every second customer orders from a template, which all shops must have.
    ///
    /// # Errors
    /// Never: no file is read.
    pub(super) fn with_template(
        template: &'static str,
        shops: u32,
        cipher: CipherArgs,
        load: LoadOptions,
        run: RunOptions,
    ) -> Result<Self> {
        let (merchants, shop) = (Merchants::Uniform, ShopOptions::default());
        let args = PayArgs { cipher, coins: 1, shops, merchants, refunds: 0, shop, load, run };
        Ok(Self { template: Some(template), ..Self::new(&args)? })
    }

    /// The request that opens a shop.
    fn shop(&self, number: u32) -> Vec<u8> {
        let id = format!("shop-{number}");
        let transfer_delay = if self.args.load.with_workers { Duration::ZERO } else { LATER };
        let settings = InstanceSettings {
            name: id.clone(),
            payto_uris: vec![format!("payto://x-taler-bank/localhost/{id}?receiver-name={id}")],
            address: Map::new(),
            jurisdiction: Map::new(),
            email: None,
            website: None,
            logo: None,
            default_max_wire_fee: world::units(1),
            default_max_deposit_fee: world::units(1),
            default_wire_fee_amortization: 1,
            default_wire_transfer_delay: transfer_delay,
            default_pay_delay: LATER,
        };
        let auth = InstanceAuth::Token { token: TOKEN.to_owned() };
        wire::post("/management/instances", &CreateInstanceRequest { id, auth, settings })
    }

    /// The price of a purchase.
    pub(super) fn amount(&self) -> Amount {
        world::units(VALUE * u64::from(self.args.coins))
    }
}

impl Workload for Pay {
    type Script = Customers;

    fn describe(&self) -> Description {
        let cipher = self.args.cipher.cipher();
        let PayArgs { coins, shops, merchants, refunds, .. } = self.args;
        let coins_text = words::coins(coins.into());
        let mut parameters = BTreeMap::from([
            ("coins".into(), json!(coins)),
            ("shops".into(), json!(shops)),
            ("merchants".into(), json!(merchants.name())),
            ("refund_percent".into(), json!(refunds)),
        ]);
        let remarks = match &self.args.shop.merchant {
            Some(server) => {
                parameters.insert("merchant".into(), json!(server.url));
                Vec::new()
            }
            None => vec![
                "the server is the merchant backend and the exchange, on the same cores; figures of the store are the exchange's"
                    .to_owned(),
            ],
        };
        Description {
            scenario: "pay",
            title: format!("pay {cipher}: orders of {coins_text}, claimed, paid and seen by the shop"),
            unit: "orders",
            kinds: vec![
                Kind::uncounted("order"),
                Kind::uncounted("claim"),
                Kind::counted("pay"),
                Kind::uncounted("status"),
                Kind::uncounted("refund"),
                Kind::uncounted("pick up"),
            ],
            parameters,
            cipher,
            coins: vec![CoinKind { value: VALUE, cipher }],
            ops_per_job: 1.0,
            remarks,
        }
    }

    fn set_up(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        let address = stage.world.merchant_address().expect("the scenario has a merchant backend");
        if self.shops.only.is_some() {
            self.shops.check(address)?;
        } else {
            let bar = stage.progress.bar("opening shops", self.args.shops.into());
            let requests = (0..self.args.shops).map(|number| self.shop(number)).collect();
            let plan = stage.world.set_up_plan(address);
            send_all(&plan, requests, "open a shop", &bar, stage.world.interrupted())?;
        }
        self.reserves = Some(Reserves::open(RESERVES, &self.seed, stage.world, stage.progress)?);
        Ok(())
    }

    fn prepare(&mut self, ops: u64, stage: &mut Stage<'_>) -> Result<Vec<Customers>> {
        let (coins_each, first) = (self.args.coins, self.prepared);
        let orders = u32::try_from(ops).map_err(|_| too_many())?;
        let end = first.checked_add(orders).ok_or_else(too_many)?;
        end.checked_mul(coins_each).ok_or_else(too_many)?;
        self.prepared = end;
        let count = orders as usize * coins_each as usize;
        let reserves = self.reserves.as_ref().expect("the set-up has made them");
        let coins = stage.coins(WITHDRAWING, reserves, &self.seed, first * coins_each, count)?;
        let mut coins = coins.into_iter();
        let terms = Arc::new(Terms {
            denom: stage.world.denoms[0].clone(),
            amount: self.amount(),
            template: self.template,
            shops: self.shops.clone(),
            exchange_url: stage.world.base_url(),
        });
        let sampling = Sampling::new(first.into(), SAMPLE_EVERY);
        let mut scripts: Vec<Customers> =
            (0..stage.threads).map(|_| Customers::new(Arc::clone(&terms), sampling, stage.clients)).collect();
        for number in u64::from(first)..u64::from(end) {
            let purchase = Purchase {
                number,
                shop: self.chooser.draw(),
                nonce: EddsaPrivateKey::from_bytes(self.seed.bytes("nonce", number)).public_key(),
                coins: coins.by_ref().take(coins_each as usize).collect(),
                is_refunded: self.choices.below(100) < u64::from(self.args.refunds),
                order_id: String::new(),
                contract: None,
                step: ORDER,
            };
            scripts[number as usize % stage.threads].waiting.push_back(purchase);
        }
        Ok(scripts)
    }

    fn check(&mut self, scripts: Vec<Customers>, _stage: &mut Stage<'_>) -> Result<u64> {
        let mut checked = 0;
        for fact in scripts.into_iter().flat_map(|script| script.facts) {
            let Fact { h_contract_terms, merchant_pub, signature, is_receipt } = fact;
            let is_valid = if is_receipt {
                MerchantPaymentOk { h_contract_terms }.verify(&merchant_pub, &signature)
            } else {
                MerchantContract { h_contract_terms }.verify(&merchant_pub, &signature)
            };
            if !is_valid {
                let what = if is_receipt { "receipt" } else { "contract" };
                return Err(BenchError::WrongAnswer(format!(
                    "the signature of {what} {h_contract_terms} is wrong"
                )));
            }
            checked += 1;
        }
        Ok(checked)
    }

    fn shares(&self, _outcome: Option<&LoadOutcome>) -> Vec<Share> {
        vec![Share { operation: CoinOperation::Order(f64::from(self.args.coins)), times: 1.0 }]
    }

    fn backend(&self) -> Option<Backend> {
        Some(self.args.shop.merchant.as_ref().map_or(Backend::Own, |server| Backend::At(server.address)))
    }
}

/// The terms that all purchases have in common.
struct Terms {
    denom: Denom,
    amount: Amount,
    template: Option<&'static str>,
    shops: Shops,
    exchange_url: String,
}

/// A purchase, from the order to the shop's last look at it.
struct Purchase {
    number: u64,
    shop: usize,
    nonce: EddsaPublicKey,
    coins: Vec<Coin>,
    is_refunded: bool,
    order_id: String,
    contract: Option<(HashCode, EddsaPublicKey)>,
    /// The kind of its last request.
    step: usize,
}

/// A signature of a shop, to be checked after the run.
struct Fact {
    h_contract_terms: HashCode,
    merchant_pub: EddsaPublicKey,
    signature: EddsaSignature,
    is_receipt: bool,
}

/// The purchases of one thread.
pub(super) struct Customers {
    terms: Arc<Terms>,
    waiting: VecDeque<Purchase>,
    sampling: Sampling,
    under_way: Vec<Option<Purchase>>,
    facts: Vec<Fact>,
}

/// The status of an order, as far as it matters here.
#[derive(Deserialize)]
struct Status {
    order_status: String,
}

impl Purchase {
    fn path(&self, terms: &Terms) -> String {
        format!("{}/orders/{}", terms.shops.path(self.shop), self.order_id)
    }

    fn private_path(&self, terms: &Terms) -> String {
        format!("{}/private/orders/{}", terms.shops.path(self.shop), self.order_id)
    }

    fn order(&self, terms: &Terms) -> Vec<u8> {
        if let Some(template) = terms.template
            && !self.number.is_multiple_of(2)
        {
            return wire::post(&format!("{}/templates/{template}", terms.shops.path(self.shop)), &json!({}));
        }
        let order = json!({
            "amount": terms.amount,
            "summary": "A measured article",
            "fulfillment_url": "https://shop.example/articles/${ORDER_ID}",
        });
        let body = if self.is_refunded {
            json!({ "order": order, "refund_delay": LATER })
        } else {
            json!({ "order": order })
        };
        let path = format!("{}/private/orders", terms.shops.path(self.shop));
        terms.shops.authorized(wire::post(&path, &body))
    }

    fn claim(&self, terms: &Terms, token: Option<String>) -> Vec<u8> {
        let body = ClaimRequest { nonce: self.nonce.to_string(), token };
        wire::post(&format!("{}/claim", self.path(terms)), &body)
    }

    fn pay(&self, terms: &Terms, contract: &ContractTerms, h_contract_terms: HashCode) -> Vec<u8> {
        let pay = |coin: &Coin| {
            let message = WalletCoinDeposit {
                h_contract_terms,
                h_age_commitment: NO_AGE,
                h_policy: NO_POLICY,
                h_wire: contract.h_wire,
                h_denom_pub: terms.denom.h_denom_pub,
                wallet_timestamp: contract.timestamp,
                refund_deadline: contract.refund_deadline,
                amount_with_fee: terms.denom.amount,
                deposit_fee: Amount::zero(terms.amount.currency),
                merchant_pub: contract.merchant_pub,
            };
            PayCoin {
                coin_pub: coin.coin_pub,
                coin_sig: message.sign(&coin.coin_priv),
                ub_sig: coin.signature.clone(),
                h_denom: terms.denom.h_denom_pub,
                contribution: terms.denom.amount,
                exchange_url: terms.exchange_url.clone(),
                minimum_age_sig: None,
                age_commitment: None,
                h_age_commitment: None,
            }
        };
        let body = PayRequest { coins: self.coins.iter().map(pay).collect(), session_id: None };
        wire::post(&format!("{}/pay", self.path(terms)), &body)
    }
}

impl Customers {
    fn new(terms: Arc<Terms>, sampling: Sampling, clients: usize) -> Self {
        Self {
            terms,
            waiting: VecDeque::new(),
            sampling,
            under_way: std::iter::repeat_with(|| None).take(clients).collect(),
            facts: Vec::new(),
        }
    }

    fn keep(&mut self, purchase: &Purchase, signature: EddsaSignature, is_receipt: bool) {
        let is_sampled = self.sampling.includes(purchase.number) && self.facts.len() < FACTS_MAX;
        if let (true, Some((h_contract_terms, merchant_pub))) = (is_sampled, purchase.contract) {
            self.facts.push(Fact { h_contract_terms, merchant_pub, signature, is_receipt });
        }
    }

    /// The request after an answer; `None` if the purchase is complete.
    fn next(&mut self, purchase: &mut Purchase, body: &[u8]) -> Result<Option<Outgoing>> {
        let terms = Arc::clone(&self.terms);
        let (bytes, kind) = match purchase.step {
            ORDER => {
                let CreateOrderResponse { order_id, token } = coins::read("order", body)?;
                purchase.order_id = order_id;
                (purchase.claim(&terms, token), CLAIM)
            }
            CLAIM => {
                let ClaimResponse { contract_terms, sig } = coins::read("claim", body)?;
                let h_contract_terms = contract_hash(&contract_terms)
                    .map_err(|error| BenchError::WrongAnswer(format!("claim: {error}")))?;
                let contract: ContractTerms = serde_json::from_value(contract_terms)
                    .map_err(|error| BenchError::WrongAnswer(format!("claim: {error}")))?;
                purchase.contract = Some((h_contract_terms, contract.merchant_pub));
                self.keep(purchase, sig, false);
                (purchase.pay(&terms, &contract, h_contract_terms), PAY)
            }
            PAY => {
                let PayResponse { sig } = coins::read("pay", body)?;
                self.keep(purchase, sig, true);
                (terms.shops.authorized(wire::get(&purchase.private_path(&terms))), STATUS)
            }
            STATUS => {
                let Status { order_status } = coins::read("status", body)?;
                if order_status != "paid" {
                    return Err(BenchError::WrongAnswer(format!("the paid order is {order_status}")));
                }
                if !purchase.is_refunded {
                    return Ok(None);
                }
                let body = ApproveRefundRequest { refund: terms.amount, reason: "torn".to_owned() };
                let path = format!("{}/refund", purchase.private_path(&terms));
                (terms.shops.authorized(wire::post(&path, &body)), REFUND)
            }
            REFUND => {
                let (h_contract, _) = purchase.contract.expect("it was claimed");
                let path = format!("{}/refund", purchase.path(&terms));
                (wire::post(&path, &PickUpRefundRequest { h_contract }), PICK_UP)
            }
            _ => {
                let answer: PickUpRefundResponse = coins::read("refund", body)?;
                let is_refunded = answer.refund_amount == terms.amount
                    && answer
                        .refunds
                        .iter()
                        .all(|refund| matches!(refund.result, RefundResult::Success { .. }));
                if !is_refunded {
                    return Err(BenchError::WrongAnswer("the exchange refused a refund".into()));
                }
                return Ok(None);
            }
        };
        purchase.step = kind;
        Ok(Some(Outgoing { bytes, kind }))
    }
}

impl Script for Customers {
    fn begin(&mut self, slot: usize) -> Option<Outgoing> {
        let purchase = self.waiting.pop_front()?;
        let bytes = purchase.order(&self.terms);
        self.under_way[slot] = Some(purchase);
        Some(Outgoing { bytes, kind: ORDER })
    }

    fn answer(&mut self, slot: usize, status: u16, body: &[u8]) -> (u64, Next) {
        let mut purchase = self.under_way[slot].take().expect("an answer belongs to a purchase");
        if status != 200 {
            let kind = purchase.step;
            return (0, Next::Failed(format!("step {kind}: {}", refusal(status, body))));
        }
        let next = match self.next(&mut purchase, body) {
            Ok(Some(outgoing)) => Next::Send(outgoing),
            Ok(None) => Next::Done,
            Err(error) => return (0, Next::Failed(error.to_string())),
        };
        self.under_way[slot] = Some(purchase);
        (1, next)
    }
}
