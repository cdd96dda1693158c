//! Payments: the coins go to their exchanges, and the order is paid when all are there (merchant chapter 2.3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration as StdDuration;

use batzen_crypto::eddsa::verify_batch;
use batzen_crypto::{AgeCommitment, AgeMask, EddsaPublicKey, EddsaSignature, HashCode, ShortHash};
use batzen_engine::PoolBusy;
use batzen_http::client::Reply;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{
    BatchDepositCoin, BatchDepositConfirmation, BatchDepositRequest, ConfirmationSignature,
    DepositConfirmation, DepositRequest,
};
use batzen_protocol::api::merchant::{ContractTerms, PayCoin, PayRequest, PayResponse};
use batzen_protocol::limits::PAY_COINS_MAX;
use batzen_protocol::signatures::{ExchangeConfirmDeposit, MerchantPaymentOk, SignedMessage};
use batzen_protocol::{Amount, AmountError, Duration, ErrorCode, ErrorDetail, Money, Timestamp};
use batzen_tables::merchant::{
    InstanceAccountKey, InstanceAccountRow, InstanceAccounts, OrderDepositRow, OrderRef, OrderRow,
};
use futures_util::future::{join, join_all};
use futures_util::{StreamExt as _, stream};
use serde_json::Value;

use super::auditors::{Sample, sample};
use super::core::Core;
use super::problems::{exchange_problem, malformed_reply, unanswered, unknown_exchange};
use super::refunds::OrderMoney;
use super::table::{Rows, endpoint};
use super::wallets::session;
use super::webhooks::Event;
use super::{Answer, Checked, FAILURES, Merchant, Shop, body, kyc, malformed, refunds, refused, webhooks};
use crate::PAY_BYTES_MAX;
use crate::exchanges::{Denom, Exchange, ExchangeError, is_base_url, is_transient};
use crate::rules::{
    self, ABORTED, ClaimPayment, ClaimedCoin, DepositsRecorded, Due, Insufficient, Payment, RecordDeposits,
    Refusal, ReleasePayment, Session, Settle,
};

pub(super) fn routes() -> Rows {
    let mut rows = Rows::of("pay");
    rows.post("/orders/:order/pay", endpoint!(Anyone, pay_order), "A wallet pays")
        .takes::<PayRequest>(PAY_BYTES_MAX)
        .gives::<PayResponse>();
    rows
}

/// Deposits of a payment that are under way at the same time.
const DEPOSITS_AT_ONCE: usize = 16;
/// The maximum number of coins in one request to an exchange.
const BATCH_COINS_MAX: usize = 256;
/// The time that a payment has at least before others may try: exchanges answer within ten seconds, or not at all.
const CLAIM_MIN: Duration = Duration::from_secs(30);
/// Time for which a payment waits for another one of the same order.
const CLAIM_PATIENCE: StdDuration = StdDuration::from_secs(10);
/// A waiting payment looks again after this time, if it has missed that the other has ended.
const CLAIM_PAUSE: StdDuration = StdDuration::from_millis(500);
const NO_POLICY: HashCode = HashCode::from_bytes([0; 64]);

/// A coin that is ready for its exchange.
pub(super) struct ReadyCoin {
    pub(crate) exchange: Arc<Exchange>,
    coin_pub: EddsaPublicKey,
    amount: Money,
    denom: Denom,
    wire_fee: Money,
    request: DepositRequest,
}

/// Coins that exchanges have accepted, and what auditors get to see of them.
#[derive(Default)]
struct Accepted {
    deposits: Vec<(EddsaPublicKey, OrderDepositRow)>,
    samples: Vec<Sample>,
}

/// The contract that a payment is for.
pub(super) struct Contract<'a> {
    shop: &'a Shop,
    order: OrderRef,
    row: &'a OrderRow,
    terms: ContractTerms,
    h_contract: HashCode,
    account: InstanceAccountRow,
}

fn insufficient(problem: Insufficient) -> Response {
    Response::error(problem.code(), "")
}

/// A payment by a wallet.
struct Attempt {
    coins: Vec<PayCoin>,
    distinct: BTreeSet<EddsaPublicKey>,
    session: Option<Session>,
}

impl Attempt {
    fn new(coins: Vec<PayCoin>, session: Option<Session>) -> Checked<Self> {
        let distinct: BTreeSet<EddsaPublicKey> = coins.iter().map(|coin| coin.coin_pub).collect();
        if coins.len() > PAY_COINS_MAX || distinct.len() != coins.len() {
            return Err(malformed("coins"));
        }
        Ok(Self { coins, distinct, session })
    }

    /// Its claim of an order. Coins may be deposited one after the other.
    fn claim(&self, core: &Core, order: OrderRef, ready: &[ReadyCoin]) -> Checked<ClaimPayment> {
        let coin = |coin: &PayCoin| {
            let amount = core.money(&coin.contribution, "contribution")?;
            // Of the other coins it is known from their deposits.
            let ready = ready.iter().find(|ready| ready.coin_pub == coin.coin_pub);
            let exchange_url = ready.map_or(&*coin.exchange_url, |ready| ready.exchange.url()).to_owned();
            Ok(ClaimedCoin { coin_pub: coin.coin_pub, amount, exchange_url })
        };
        let mut coins: Vec<ClaimedCoin> = self.coins.iter().map(coin).collect::<Checked<_>>()?;
        coins.sort_by_key(|coin| coin.coin_pub);
        let each = Duration::from_secs(coins.len() as u64);
        Ok(ClaimPayment { order, coins, until: core.now().saturating_add(CLAIM_MIN).saturating_add(each) })
    }
}

/// The answer to a payment that would have to wait for another one.
const UNDER_WAY: &str = "another payment of this order is under way: ask again";

async fn pay_order(app: &Arc<Merchant>, request: &mut Request, shop: &Shop, order_id: &str) -> Answer {
    let PayRequest { coins, session_id } = body(request)?;
    let attempt = Attempt::new(coins, session(session_id.as_deref())?)?;
    let timers = &app.core.timers;
    let deadline = timers.now() + CLAIM_PATIENCE;
    let (order, _) = app.core.order(shop, order_id).await?;
    loop {
        // Registered first, so that no change is missed.
        let poll = app.core.notices.poll_order(&order);
        match pay(app, request, shop, order_id, &attempt).await {
            Err(NotPaid::UnderWay) if timers.now() < deadline => {}
            Err(NotPaid::UnderWay) => return Err(FAILURES.try_later(UNDER_WAY)),
            Err(NotPaid::Answer(response)) => return Err(response),
            Ok(response) => return Ok(response),
        }
        let pause = timers.sleep_until(deadline.min(timers.now() + CLAIM_PAUSE));
        match poll {
            Some(mut poll) => tokio::select! {
                came = poll.event(&request.drain) => if !came {
                    // The service ends, or this client has used up its waiting requests.
                    return Err(FAILURES.try_later(UNDER_WAY));
                },
                () = pause => {}
            },
            None => pause.await,
        }
    }
}

/// The result of an attempt that does not pay the order.
enum NotPaid {
    /// Other coins are being deposited for it.
    UnderWay,
    /// The answer to the wallet.
    Answer(Response),
}

impl From<Response> for NotPaid {
    fn from(response: Response) -> Self {
        Self::Answer(response)
    }
}

async fn pay(
    app: &Arc<Merchant>,
    request: &mut Request,
    shop: &Shop,
    order_id: &str,
    attempt: &Attempt,
) -> Result<Response, NotPaid> {
    let signer = shop.signer()?;
    let unknown = || Response::error(ErrorCode::MERCHANT_GENERIC_ORDER_UNKNOWN, order_id);
    let (order, row) = app.core.order(shop, order_id).await?;
    let h_contract = row.h_contract.ok_or_else(unknown)?;
    let OrderMoney { deposits, refunds, refunded, .. } = refunds::money_of(&app.core, order).await?;
    // A coin that was given up does not pay, so it is better not deposited.
    let is_given_up =
        |coin_pub: &EddsaPublicKey| refunds.iter().any(|(refund, _)| refund.coin_pub == *coin_pub);
    let deposited: BTreeMap<EddsaPublicKey, OrderDepositRow> =
        deposits.into_iter().map(|(key, row)| (key.coin_pub, row)).collect();
    let mut accepted = Accepted::default();
    // Coins of an older payment may suffice, if the process ended before it was settled.
    let suffices =
        row.paid.is_some() || (!deposited.is_empty() && enough(&row, &deposited, &[], refunded).is_ok());
    let is_other = suffices && {
        let is_returned = |coin_pub: &EddsaPublicKey| {
            refunds
                .iter()
                .any(|(refund, _)| (refund.coin_pub, refund.rtransaction_id) == (*coin_pub, ABORTED))
        };
        let mut paying = deposited.keys().filter(|coin_pub| !is_returned(coin_pub));
        let is_known = |coin_pub: &EddsaPublicKey| deposited.contains_key(coin_pub);
        !attempt.distinct.iter().all(is_known) || !paying.all(|coin_pub| attempt.distinct.contains(coin_pub))
    };
    let already_paid = || Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_ALREADY_PAID, order_id);
    if is_other && row.paid.is_some() {
        return Err(already_paid().into());
    }
    let left: Vec<PayCoin> =
        attempt.coins.iter().filter(|coin| !deposited.contains_key(&coin.coin_pub)).cloned().collect();
    if !suffices && !left.is_empty() {
        if left.iter().any(|coin| is_given_up(&coin.coin_pub)) {
            return Err(insufficient(Insufficient::Refunded).into());
        }
        let contract = contract(&app.core, shop, order, &row, h_contract).await?;
        // Exchanges may take seconds, which must not keep other requests from being served.
        request.leave_slot();
        let ready = ready_coins(app, &contract, left).await?;
        enough(&row, &deposited, &ready, refunded).map_err(insufficient)?;
        accepted = take(app, &contract, attempt, ready).await?;
    }
    let (instance, fulfillment_url) = (shop.id.clone(), row.fulfillment_url.clone());
    let hooks = match row.paid {
        None => webhooks::hooks(&app.core, shop, &row, &Event::Pay).await?,
        Some(_) => Vec::new(),
    };
    let products = row.products.0.clone();
    let has_hooks = !hooks.is_empty();
    let session = attempt.session.clone();
    let settle = Settle { order, instance, fulfillment_url, session, products, hooks };
    let are_surplus = book(app, order_id, h_contract, accepted, settle).await?.are_surplus;
    if has_hooks {
        app.core.notices.webhooks.announce_here(&[]);
    }
    app.core.notices.order_changed(&order);
    if row.paid.is_none() {
        kyc::look_for_kyc(app, shop, order, h_contract, &row);
    }
    if is_other || are_surplus {
        return Err(already_paid().into());
    }
    let sig = MerchantPaymentOk { h_contract_terms: h_contract }.sign_with(signer);
    Ok(Response::json(200, &PayResponse { sig }))
}

/// Deposits coins under a claim of the order, so that no other coins are deposited for it meanwhile.
async fn take(
    app: &Arc<Merchant>,
    contract: &Contract<'_>,
    attempt: &Attempt,
    ready: Vec<ReadyCoin>,
) -> Result<Accepted, NotPaid> {
    let (order, order_id) = (contract.order, &contract.row.order_id);
    let claim = attempt.claim(&app.core, order, &ready)?;
    match app.core.execute(claim).await? {
        Ok(()) => {}
        // The next attempt finds out by which coins.
        Err(Refusal::PaymentUnderWay | Refusal::Paid) => return Err(NotPaid::UnderWay),
        Err(refusal) => return Err(refused(&refusal, order_id).into()),
    }
    match deposit(app, contract, ready).await {
        // Unless it is not known what an exchange has done: then only these coins may pay until the claim ends.
        Err(NotDeposited { problem, is_sure: true }) => {
            let coins = attempt.distinct.iter().copied().collect();
            app.core.decide(ReleasePayment { order, coins }, order_id).await?;
            app.core.notices.order_changed(&order);
            Err(problem.into())
        }
        Err(NotDeposited { problem, .. }) => Err(problem.into()),
        Ok(accepted) => Ok(accepted),
    }
}

/// The reason why coins were not all accepted.
struct NotDeposited {
    problem: Response,
    /// Whether every exchange has said what it did with its coins.
    is_sure: bool,
}

impl From<Response> for NotDeposited {
    fn from(problem: Response) -> Self {
        Self { problem, is_sure: false }
    }
}

/// Books coins that were accepted, and that they pay the order: usually in one commit.
async fn book(
    app: &Arc<Merchant>,
    order_id: &str,
    h_contract: HashCode,
    accepted: Accepted,
    settle: Settle,
) -> Checked<DepositsRecorded> {
    let refuse = |refusal: Refusal| refused(&refusal, order_id);
    let Accepted { deposits, samples } = accepted;
    if deposits.is_empty() {
        app.core.execute(settle).await?.map_err(refuse)?;
        return Ok(DepositsRecorded { are_surplus: false });
    }
    let record = RecordDeposits { order: settle.order, h_contract, deposits };
    // The second command is submitted after the first one, without waiting for it.
    let (recorded, settled) = join(app.core.execute(record), app.core.execute(settle.clone())).await;
    let recorded = recorded?.map_err(refuse)?;
    app.auditors.show(samples);
    match settled? {
        // Another writer came in between, so it was decided before the coins were there.
        Err(Refusal::Insufficient(_)) => app.core.execute(settle).await?.map_err(refuse)?,
        settled => settled.map_err(refuse)?,
    }
    Ok(recorded)
}

/// The contract of an order that is to be paid.
async fn contract<'a>(
    core: &Core,
    shop: &'a Shop,
    order: OrderRef,
    row: &'a OrderRow,
    h_contract: HashCode,
) -> Checked<Contract<'a>> {
    let now = core.now();
    if row.pay_deadline <= now {
        return Err(Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_OFFER_EXPIRED, &row.order_id));
    }
    let terms = refunds::contract_terms(row)?;
    let key = InstanceAccountKey { instance: shop.id.clone(), h_wire: terms.h_wire };
    let account = core.read(move |store| store.get::<InstanceAccounts>(&key)).await?;
    let unknown = || Response::error(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_WIRE_HASH_UNKNOWN, &row.order_id);
    let account = account.ok_or_else(unknown)?.row;
    Ok(Contract { shop, order, row, terms, h_contract, account })
}

/// Checks coins against what their exchanges say.
async fn ready_coins(
    app: &Merchant,
    contract: &Contract<'_>,
    coins: Vec<PayCoin>,
) -> Checked<Vec<ReadyCoin>> {
    let mut by_exchange: BTreeMap<String, Vec<PayCoin>> = BTreeMap::new();
    for coin in coins {
        by_exchange.entry(coin.exchange_url.clone()).or_default().push(coin);
    }
    let mut ready = Vec::new();
    let are_few = app.exchanges.are_few(by_exchange.keys().map(String::as_str));
    if !are_few || !by_exchange.keys().all(|url| is_base_url(url)) {
        return Err(malformed("exchange_url"));
    }
    for (url, coins) in by_exchange {
        let denoms: Vec<HashCode> = coins.iter().map(|coin| coin.h_denom).collect();
        let exchange = app.exchanges.of_coins(&url, &denoms).await;
        let exchange = exchange.map_err(|error| unknown_exchange(&error, &url))?;
        let is_refused = |coin: &PayCoin| {
            exchange.denoms.get(&coin.h_denom).is_some_and(|denom| !exchange.is_accepted(denom))
        };
        if coins.iter().any(is_refused) {
            let code = ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_DENOMINATION_KEY_AUDITOR_FAILURE;
            return Err(Response::error(code, &url));
        }
        let fee = exchange.wire_fee(&contract.terms.wire_method, app.core.now());
        let fee = fee.and_then(|fee| fee.wire_fee.money_in(app.core.config.currency).ok());
        let wire_fee = fee.ok_or_else(|| {
            let code = ErrorCode::MERCHANT_GENERIC_HOLE_IN_WIRE_FEE_STRUCTURE;
            Response::error(code, &contract.terms.wire_method)
        })?;
        for coin in coins {
            ready.push(ready_coin(&app.core, contract, &exchange, wire_fee, coin)?);
        }
        // It could not confirm what it takes.
        if !exchange.can_sign(app.core.now()) {
            let error = ExchangeError::Malformed(format!("{url} has no signing key that is accepted"));
            return Err(unknown_exchange(&error, &url));
        }
    }
    Ok(ready)
}

fn ready_coin(
    core: &Core,
    contract: &Contract<'_>,
    exchange: &Arc<Exchange>,
    wire_fee: Money,
    coin: PayCoin,
) -> Checked<ReadyCoin> {
    let refuse = |code| Response::error(code, &coin.coin_pub.to_string());
    let denom = exchange.denoms.get(&coin.h_denom);
    let denom = denom
        .ok_or_else(|| refuse(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_DENOMINATION_KEY_NOT_FOUND))?
        .clone();
    if denom.expire_deposit <= core.now() {
        return Err(refuse(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_DENOMINATION_DEPOSIT_EXPIRED));
    }
    let amount = core.money(&coin.contribution, "contribution")?;
    let h_age_commitment = age(contract.terms.minimum_age, &denom, &coin).map_err(refuse)?;
    let terms = &contract.terms;
    let request = DepositRequest {
        merchant_payto_uri: contract.account.payto_uri.clone(),
        wire_salt: contract.account.salt,
        contribution: coin.contribution,
        denom_pub_hash: coin.h_denom,
        ub_sig: coin.ub_sig,
        merchant_pub: terms.merchant_pub,
        h_contract_terms: contract.h_contract,
        h_age_commitment,
        coin_sig: coin.coin_sig,
        timestamp: terms.timestamp,
        refund_deadline: (terms.refund_deadline != Timestamp::ZERO).then_some(terms.refund_deadline),
        wire_transfer_deadline: terms.wire_transfer_deadline,
        policy: None,
    };
    Ok(ReadyCoin {
        exchange: Arc::clone(exchange),
        coin_pub: coin.coin_pub,
        amount,
        denom,
        wire_fee,
        request,
    })
}

/// Deposits coins. If some are not accepted, the others are recorded.
async fn deposit(
    app: &Arc<Merchant>,
    contract: &Contract<'_>,
    ready: Vec<ReadyCoin>,
) -> Result<Accepted, NotDeposited> {
    let mut batches: Vec<Vec<ReadyCoin>> = Vec::new();
    for coin in ready {
        let fits = |batch: &&mut Vec<ReadyCoin>| {
            batch.len() < BATCH_COINS_MAX && Arc::ptr_eq(&batch[0].exchange, &coin.exchange)
        };
        match batches.last_mut().filter(fits) {
            Some(batch) => batch.push(coin),
            None => batches.push(vec![coin]),
        }
    }
    let mut accepted = Accepted::default();
    let mut problem: Option<Response> = None;
    let mut is_sure = true;
    let answers = join_all(batches.into_iter().map(|batch| deposit_batch(app, contract, batch)));
    for answers in answers.await {
        for (coin, answer) in answers {
            match answer {
                Ok(confirmation) => {
                    let (currency, share) = (app.core.config.currency, app.core.config.confirmation_share);
                    accepted.samples.extend(sample(contract, &coin, &confirmation, currency, share));
                    let DepositConfirmation { exchange_timestamp, exchange_pub, exchange_sig, .. } =
                        confirmation;
                    let row = OrderDepositRow {
                        exchange_url: coin.exchange.url().to_owned(),
                        amount: coin.amount,
                        deposit_fee: coin.denom.deposit_fee,
                        refund_fee: coin.denom.refund_fee,
                        wire_fee: coin.wire_fee,
                        exchange_time: exchange_timestamp,
                        exchange_pub,
                        exchange_sig,
                    };
                    accepted.deposits.push((coin.coin_pub, row));
                }
                // What goes away by itself gives way to the others, about which the wallet can do something.
                Err(other) => {
                    is_sure &= other.status < 500;
                    let gives_way = |problem: &Response| problem.status >= 500 && other.status < 500;
                    if problem.as_ref().is_none_or(gives_way) {
                        problem = Some(other);
                    }
                }
            }
        }
    }
    let Some(problem) = problem else { return Ok(accepted) };
    if !accepted.deposits.is_empty() {
        let (order, h_contract) = (contract.order, contract.h_contract);
        let record = RecordDeposits { order, h_contract, deposits: accepted.deposits };
        app.core.decide(record, &contract.row.order_id).await?;
        app.auditors.show(accepted.samples);
    }
    Err(NotDeposited { problem, is_sure })
}

/// Deposits coins of one exchange: in one request if it can do that, otherwise one by one.
async fn deposit_batch(
    app: &Merchant,
    contract: &Contract<'_>,
    coins: Vec<ReadyCoin>,
) -> Vec<(ReadyCoin, Checked<DepositConfirmation>)> {
    if coins.len() > 1 && coins[0].exchange.has_batch_deposit.load(Ordering::Relaxed) {
        match deposit_together(app, contract, &coins).await {
            Ok(Some(confirmations)) => {
                return coins.into_iter().zip(confirmations.into_iter().map(Ok)).collect();
            }
            Ok(None) => {}
            Err(problem) => {
                let mut problem = Some(problem);
                let failed = |coin| {
                    // All or none were accepted, so one answer is about all of them.
                    let answer = problem.take();
                    answer.map(|answer| (coin, Err(answer)))
                };
                return coins.into_iter().map_while(failed).collect();
            }
        }
    }
    let answers = stream::iter(coins.into_iter().map(|coin| async move {
        let answer = deposit_one(app, contract, &coin).await;
        (coin, answer)
    }));
    answers.buffer_unordered(DEPOSITS_AT_ONCE).collect().await
}

/// Deposits coins in one request. `None`: the exchange has to be asked for each coin.
async fn deposit_together(
    app: &Merchant,
    contract: &Contract<'_>,
    coins: &[ReadyCoin],
) -> Checked<Option<Vec<DepositConfirmation>>> {
    let first = &coins[0].request;
    let coin = |coin: &ReadyCoin| BatchDepositCoin {
        contribution: coin.request.contribution,
        denom_pub_hash: coin.request.denom_pub_hash,
        ub_sig: coin.request.ub_sig.clone(),
        coin_pub: coin.coin_pub,
        h_age_commitment: coin.request.h_age_commitment,
        coin_sig: coin.request.coin_sig,
    };
    let request = BatchDepositRequest {
        merchant_payto_uri: first.merchant_payto_uri.clone(),
        wire_salt: first.wire_salt,
        merchant_pub: first.merchant_pub,
        h_contract_terms: first.h_contract_terms,
        coins: coins.iter().map(coin).collect(),
        timestamp: first.timestamp,
        refund_deadline: first.refund_deadline,
        wire_transfer_deadline: first.wire_transfer_deadline,
        policy: None,
    };
    let reply = coins[0].exchange.post("batch-deposit").json(&request).send().await;
    let reply = reply.map_err(|error| unanswered(&error))?;
    let is_unknown = |reply: &Reply| {
        let code = reply.json::<ErrorDetail>().map(|body| body.code);
        code.is_ok_and(|code| {
            code == ErrorCode::GENERIC_ENDPOINT_UNKNOWN || code == ErrorCode::GENERIC_METHOD_INVALID
        })
    };
    match reply.status {
        200 => {}
        404 | 405 if is_unknown(&reply) => {
            coins[0].exchange.has_batch_deposit.store(false, Ordering::Relaxed);
            return Ok(None);
        }
        status => return Err(not_deposited(status, &reply)),
    }
    let BatchDepositConfirmation { exchange_timestamp, exchange_pub, exchange_sigs, .. } =
        reply.json().map_err(|_| malformed_reply())?;
    let confirmation = |sig: ConfirmationSignature| DepositConfirmation {
        exchange_timestamp,
        exchange_pub,
        exchange_sig: sig.exchange_sig,
        transaction_base_url: None,
    };
    let confirmations: Vec<_> = exchange_sigs.into_iter().map(confirmation).collect();
    let are_confirmed =
        confirmations.len() == coins.len() && confirm(app, contract, coins, &confirmations).await?;
    // If some coins were accepted earlier, at another time, each has its own confirmation.
    Ok(are_confirmed.then_some(confirmations))
}

async fn deposit_one(
    app: &Merchant,
    contract: &Contract<'_>,
    coin: &ReadyCoin,
) -> Checked<DepositConfirmation> {
    let call = coin.exchange.post(&format!("coins/{}/deposit", coin.coin_pub)).json(&coin.request);
    let reply = call.send().await.map_err(|error| unanswered(&error))?;
    if reply.status != 200 {
        return Err(not_deposited(reply.status, &reply));
    }
    let confirmation: DepositConfirmation = reply.json().map_err(|_| malformed_reply())?;
    let (coins, confirmations) = (std::slice::from_ref(coin), std::slice::from_ref(&confirmation));
    let is_confirmed = confirm(app, contract, coins, confirmations).await?;
    if is_confirmed { Ok(confirmation) } else { Err(malformed_reply()) }
}

/// Checks that the exchange has signed that it will pay for these coins.
async fn confirm(
    app: &Merchant,
    contract: &Contract<'_>,
    coins: &[ReadyCoin],
    confirmations: &[DepositConfirmation],
) -> Checked<bool> {
    let check = |(coin, confirmation): (&ReadyCoin, &DepositConfirmation)| {
        let DepositConfirmation { exchange_timestamp, exchange_pub, exchange_sig, .. } = *confirmation;
        let message = confirmed_message(contract, coin, confirmation, app.core.config.currency).ok()?;
        let is_known = coin.exchange.signs_with(&exchange_pub, exchange_timestamp);
        let message = message.message().as_ref().into();
        is_known.then_some(Confirmation { exchange_pub, message, exchange_sig })
    };
    let checks: Option<Vec<_>> = coins.iter().zip(confirmations).map(check).collect();
    let Some(checks) = checks else { return Ok(false) };
    let verdicts = app.confirmations.run(checks).await.map_err(|PoolBusy| FAILURES.busy())?;
    Ok(verdicts.into_iter().all(|is_valid| is_valid))
}

/// A signature of an exchange, to be checked together with those of other payments.
pub(super) struct Confirmation {
    exchange_pub: EddsaPublicKey,
    message: Box<[u8]>,
    exchange_sig: EddsaSignature,
}

/// Returns whether each of the signatures is valid.
pub(super) fn check(confirmations: &[Confirmation]) -> Vec<bool> {
    let items: Vec<_> = confirmations
        .iter()
        .map(|Confirmation { exchange_pub, message, exchange_sig }| (exchange_pub, &**message, exchange_sig))
        .collect();
    verify_batch(&items)
}

/// The exchange did not accept coins.
fn not_deposited(status: u16, reply: &Reply) -> Response {
    let body = reply.json::<Value>().ok().map(|body| (status, body));
    let code = match status {
        // The exchange checks the coins' signatures, so that nobody else has to.
        403 if reply.code() == Some(ErrorCode::EXCHANGE_DEPOSIT_COIN_SIGNATURE_INVALID) => {
            ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_COIN_SIGNATURE_INVALID
        }
        409 => ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_INSUFFICIENT_FUNDS,
        _ if is_transient(status) => ErrorCode::MERCHANT_GENERIC_EXCHANGE_UNEXPECTED_STATUS,
        _ => ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_EXCHANGE_FAILED,
    };
    exchange_problem(code, None, body)
}

/// The message that an exchange signs when it accepts a coin.
pub(super) fn confirmed_message(
    contract: &Contract<'_>,
    coin: &ReadyCoin,
    confirmation: &DepositConfirmation,
    currency: batzen_protocol::Currency,
) -> Result<ExchangeConfirmDeposit, AmountError> {
    let without_fee = coin.amount.checked_sub(coin.denom.deposit_fee)?;
    Ok(ExchangeConfirmDeposit {
        h_contract_terms: contract.h_contract,
        h_wire: contract.terms.h_wire,
        h_policy: NO_POLICY,
        exchange_timestamp: confirmation.exchange_timestamp,
        wire_deadline: contract.terms.wire_transfer_deadline,
        refund_deadline: contract.terms.refund_deadline,
        amount_without_fee: Amount { currency, money: without_fee },
        coin_pub: coin.coin_pub,
        merchant_pub: contract.shop.row.merchant_pub,
    })
}

/// Checks before any coin is deposited that all together pay the order: what an exchange has accepted, the customer
/// does not get back at once.
fn enough(
    row: &OrderRow,
    deposited: &BTreeMap<EddsaPublicKey, OrderDepositRow>,
    ready: &[ReadyCoin],
    refunded: Money,
) -> Result<(), Insufficient> {
    let due = Due {
        amount: row.amount,
        max_fee: row.max_fee,
        max_wire_fee: row.max_wire_fee,
        wire_fee_amortization: row.wire_fee_amortization,
    };
    let before = deposited.values().map(|coin| Payment {
        exchange_url: coin.exchange_url.clone(),
        amount: coin.amount,
        deposit_fee: coin.deposit_fee,
        wire_fee: coin.wire_fee,
    });
    let now = ready.iter().map(|coin| Payment {
        exchange_url: coin.exchange.url().to_owned(),
        amount: coin.amount,
        deposit_fee: coin.denom.deposit_fee,
        wire_fee: coin.wire_fee,
    });
    rules::check_payment(&due, &before.chain(now).collect::<Vec<_>>(), refunded)
}

/// The hash of a coin's age commitment, after the coin has proved the contract's minimum age (chapter 2.3.1).
fn age(minimum_age: Option<u8>, denom: &Denom, coin: &PayCoin) -> Result<Option<ShortHash>, ErrorCode> {
    if denom.age_mask == 0 {
        return Ok(None);
    }
    let Some(age) = minimum_age.filter(|age| *age > 0) else {
        let missing = ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_AGE_COMMITMENT_HASH_MISSING;
        return coin.h_age_commitment.map(Some).ok_or(missing);
    };
    let missing = ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_AGE_COMMITMENT_MISSING;
    let keys = coin.age_commitment.clone().ok_or(missing)?;
    let commitment = AgeMask::new(denom.age_mask).and_then(|mask| AgeCommitment::new(mask, keys));
    let commitment =
        commitment.map_err(|_| ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_AGE_COMMITMENT_SIZE_MISMATCH)?;
    // The youngest group needs no proof.
    let is_proven = commitment.mask().group(age) == 0
        || coin.minimum_age_sig.as_ref().is_some_and(|proof| commitment.verify(age, proof));
    if is_proven {
        Ok(Some(commitment.hash()))
    } else {
        Err(ErrorCode::MERCHANT_POST_ORDERS_ID_PAY_AGE_VERIFICATION_FAILED)
    }
}
