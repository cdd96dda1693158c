//! The shop: the real merchant backend, in this thread. It asks the exchange over the simulated network.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use batzen_engine::SubmitError;
use batzen_http::Request;
use batzen_merchant::inline::{InlineMerchant, Verdict};
use batzen_merchant::rules::{Answer, Command};
use batzen_merchant::{MerchantConfig, MerchantError, Surroundings, TrustedExchange};
use batzen_protocol::Timestamp;
use batzen_store::{Store, StoreError};
use batzen_wallet::core::http::{Context as HttpContext, HttpRequest, HttpResponse};
use serde_json::json;
use tokio::sync::oneshot;

use crate::exchange::response_without_damage;
use crate::host::{Host, Step, Stop};
use crate::keys::{EXCHANGE_URL, Keys, currency, payto};
use crate::message::{Body, Context, Message, ProcessId, Timer};
use crate::outside::{Outside, Sent};
use crate::random::Random;
use crate::service::{Call, SetClock, entropy, sent_to, served};
use crate::swarm::{Bug, SECOND};

/// Base URL of the shop.
pub const SHOP_URL: &str = "http://shop.test/";
/// Name of the shop's account at the bank.
pub const SHOP_ACCOUNT: &str = "shop";
/// Time that the shop waits for the exchange.
const PATIENCE: u64 = 10 * SECOND;
/// Time from an order to its refund deadline: long after it can be paid, because coins of a payment that a crash interrupted
/// cannot be given back once the exchange has paid for them.
const REFUND_DELAY: u64 = 12 * 3_600 * SECOND;
/// Time between two looks for coins that are to be given back.
const RETURNS_GAP: u64 = 300 * SECOND;

struct Running {
    service: InlineMerchant,
    clock: SetClock,
    outside: Outside,
    /// The requests that are not answered yet.
    open: Vec<(Message, Call)>,
    /// Gives back coins that did not pay their orders.
    returns: Option<Call<()>>,
}

/// The shop.
pub struct Shop {
    /// Its process.
    pub host: Host,
    running: Option<Running>,
    /// Requests to the exchange that are not answered yet, by their calls.
    asked: BTreeMap<u64, oneshot::Sender<HttpResponse>>,
    /// Sleeping tasks.
    sleepers: BTreeMap<u64, oneshot::Sender<()>>,
    next_sleep: u64,
    /// The addresses of payments that it has confirmed.
    confirmed: BTreeSet<String>,
}

impl Shop {
    /// A new shop; [`Shop::start`] starts it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            host: Host::new(ProcessId::Shop, seed, batzen_tables::merchant::ALL),
            running: None,
            asked: BTreeMap::new(),
            sleepers: BTreeMap::new(),
            next_sleep: 0,
            confirmed: BTreeSet::new(),
        }
    }

    /// Its store, while it runs.
    #[must_use]
    pub fn store(&self) -> Option<&Store> {
        Some(self.running.as_ref()?.service.store())
    }

    /// Starts. A new shop is founded first.
    ///
    /// # Errors
    /// When the store does not open or cannot be read.
    pub fn start(&mut self, context: &mut Context) -> Step {
        self.forget();
        let Some(store) = self.host.open(context)? else { return Ok(()) };
        let random = Random::new(context.random.draw());
        let running = match serve(store, self.host.clock(context), random) {
            Ok(running) => running,
            Err(_) if self.host.has_died(context) => return Ok(()),
            Err(MerchantError::Store(StoreError::Full(_))) => {
                self.host.die(context);
                return Ok(());
            }
            Err(error) => return Err(self.host.refused(context, &error)),
        };
        self.running = Some(running);
        // Once it has been founded, it is founded.
        let alone = &mut |_: &mut Context, asked: &HttpRequest| {
            Err(Stop::wrong(format!("the shop asks for {} when it is founded", asked.url)))
        };
        let founded = self.answer(context, &foundation(), alone)?;
        if self.lost(context) {
            return Ok(());
        }
        if ![204, 409].contains(&founded.status) {
            response_without_damage(&founded)?;
            self.kill(context);
            return Ok(());
        }
        context.wake(ProcessId::Shop, self.host.incarnation, RETURNS_GAP, Timer::Return);
        Ok(())
    }

    /// The process has ended: drops all its memory.
    fn forget(&mut self) {
        self.running = None;
        self.asked.clear();
        self.sleepers.clear();
    }

    /// Kills it now.
    pub fn kill(&mut self, context: &mut Context) {
        if self.host.is_up() {
            self.forget();
            self.host.die(context);
        }
    }

    fn lost(&mut self, context: &mut Context) -> bool {
        let has_died = self.host.has_died(context);
        if has_died {
            self.forget();
        }
        has_died
    }

    /// A message arrives.
    ///
    /// # Errors
    /// If a check fails.
    pub fn arrive(&mut self, context: &mut Context, message: Message) -> Step {
        let Some(running) = &mut self.running else {
            context.marks.meet("message.to_dead_process");
            return Ok(());
        };
        match &message.body {
            Body::Ask(request) => {
                let call = Call::new(running.service.call(local(request)));
                running.open.push((message, call));
                self.go_on(context)
            }
            Body::Reply(response) => {
                let answer = self.asked.remove(&message.call);
                match answer.map(|answer| answer.send((**response).clone())) {
                    Some(Ok(())) => self.go_on(context),
                    Some(Err(_)) | None => Ok(()),
                }
            }
            Body::LedgerAsk(_) | Body::LedgerReply(_) => Ok(()),
        }
    }

    /// A timer fires.
    ///
    /// # Errors
    /// If a check fails.
    pub fn timer(&mut self, context: &mut Context, timer: Timer) -> Step {
        match timer {
            Timer::Batch => self.batch(context),
            Timer::Maintain => {
                self.host.maintain(context)?;
                if !self.host.is_up() {
                    self.forget();
                }
                Ok(())
            }
            // The task that waits for the answer is told that there is none.
            Timer::GiveUp(call) => match self.asked.remove(&call) {
                Some(_) => self.go_on(context),
                None => Ok(()),
            },
            Timer::Slept(sleep) => match self.sleepers.remove(&sleep).map(|sleeper| sleeper.send(())) {
                Some(Ok(())) => self.go_on(context),
                Some(Err(())) | None => Ok(()),
            },
            Timer::Return => {
                context.wake(ProcessId::Shop, self.host.incarnation, RETURNS_GAP, Timer::Return);
                let Some(running) = &mut self.running else { return Ok(()) };
                if running.returns.is_none() {
                    running.returns = Some(Call::new(running.service.give_back()));
                }
                self.go_on(context)
            }
            other => Err(Stop::wrong(format!("the shop has no timer {other:?}"))),
        }
    }

    /// Continues all requests. Sends the answers that are ready, and what the exchange is asked.
    fn go_on(&mut self, context: &mut Context) -> Step {
        let now = self.host.clock(context);
        let Some(running) = &mut self.running else { return Ok(()) };
        running.clock.set(now);
        running.outside.set_now(context.now);
        let mut answered = Vec::new();
        for (message, mut call) in std::mem::take(&mut running.open) {
            match call.poll() {
                Some(response) => answered.push((message, served(response))),
                None => running.open.push((message, call)),
            }
        }
        if let Some(returns) = &mut running.returns
            && returns.poll().is_some()
        {
            running.returns = None;
        }
        let (sent, sleeps) = running.outside.take();
        if running.service.has_waiting() {
            self.host.schedule(context);
        }
        if self.lost(context) {
            return Ok(());
        }
        for (message, response) in answered {
            response_without_damage(&response)?;
            self.note_answer(context, &message, &response);
            context.send(message.reply(Body::Reply(Rc::new(response))));
        }
        for (request, answer) in sent {
            self.ask(context, (request, answer));
        }
        for (end, sleeper) in sleeps {
            self.next_sleep += 1;
            self.sleepers.insert(self.next_sleep, sleeper);
            let after = end.saturating_sub(context.now);
            context.wake(ProcessId::Shop, self.host.incarnation, after, Timer::Slept(self.next_sleep));
        }
        Ok(())
    }

    fn ask(&mut self, context: &mut Context, (request, answer): Sent) {
        let call = context.call();
        self.asked.insert(call, answer);
        let body = Body::Ask(Rc::new(sent_to(HttpContext::Merchant, request)));
        context.send(Message { from: ProcessId::Shop, to: ProcessId::Exchange, call, body });
        context.wake(ProcessId::Shop, self.host.incarnation, PATIENCE, Timer::GiveUp(call));
    }

    fn note_answer(&mut self, context: &mut Context, message: &Message, response: &HttpResponse) {
        let Body::Ask(request) = &message.body else { return };
        if request.url.ends_with("/refund") && !request.url.contains("/private/") && response.status == 200 {
            let has_failed = response.body.windows(9).any(|part| part == b"\"failure\"");
            context.marks.meet(if has_failed { "shop.refund_waits" } else { "shop.refunded" });
        }
        if request.url.ends_with("/pay") {
            context.marks.meet(match response.status {
                200 if self.confirmed.insert(request.url.clone()) => "shop.paid",
                200 => "shop.repeated",
                409 => "shop.already_paid",
                500.. => "shop.exchange_silent",
                _ => "shop.refused",
            });
        }
    }

    /// Decides the waiting commands as one batch.
    fn batch(&mut self, context: &mut Context) -> Step {
        self.host.take_inbox(context);
        let now = self.host.clock(context);
        let Some(running) = &mut self.running else { return Ok(()) };
        running.clock.set(now);
        let waiting = running.service.take();
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        for (command, answer) in waiting {
            match plant(context, &command) {
                Some(verdict) => answer.send(Ok(verdict)),
                None => {
                    commands.push(command);
                    answers.push(answer);
                }
            }
        }
        let decided = running.service.decide(&commands);
        if self.lost(context) {
            return Ok(());
        }
        match decided {
            Ok(verdicts) => {
                answers.into_iter().zip(verdicts).for_each(|(answer, verdict)| answer.send(Ok(verdict)));
            }
            Err(error) => {
                self.host.note_failure(context, &error)?;
                let error = Arc::new(error);
                for answer in answers {
                    answer.send(Err(SubmitError::Store(Arc::clone(&error))));
                }
            }
        }
        self.go_on(context)
    }

    /// Answers a request at once, without network and faults. `exchange` answers what the exchange is asked.
    ///
    /// # Errors
    /// If a check fails.
    pub fn answer(
        &mut self,
        context: &mut Context,
        request: &HttpRequest,
        exchange: &mut dyn FnMut(&mut Context, &HttpRequest) -> Step<HttpResponse>,
    ) -> Step<HttpResponse> {
        let now = self.host.clock(context);
        let Some(running) = &self.running else { return Err(Stop::wrong("the shop is down")) };
        running.clock.set(now);
        let mut call = Call::new(running.service.call(local(request)));
        loop {
            if let Some(response) = call.poll() {
                return Ok(served(response));
            }
            let (sent, _) = running.outside.take();
            let (commands, answers): (Vec<_>, Vec<_>) = running.service.take().into_iter().unzip();
            if commands.is_empty() && sent.is_empty() {
                return Err(Stop::wrong(format!("the shop waits for nothing to answer {}", request.url)));
            }
            for (asked, answer) in sent {
                // The task may have ended.
                let _ = answer.send(exchange(context, &sent_to(HttpContext::Merchant, asked))?);
            }
            match running.service.decide(&commands) {
                Ok(verdicts) => {
                    answers.into_iter().zip(verdicts).for_each(|(answer, verdict)| answer.send(Ok(verdict)));
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for answer in answers {
                        answer.send(Err(SubmitError::Store(Arc::clone(&error))));
                    }
                }
            }
        }
    }
}

fn serve(store: Store, now: Timestamp, random: Random) -> Result<Running, MerchantError> {
    let (clock, outside) = (SetClock::at(now), Outside::default());
    let trusted = TrustedExchange { url: EXCHANGE_URL.to_owned(), master_pub: Keys::get().master_pub };
    let shown = clock.clone();
    let config = MerchantConfig {
        exchanges: vec![trusted],
        clock: Arc::new(move || shown.now()),
        ..MerchantConfig::new(currency())
    };
    let surroundings = Surroundings {
        timers: Arc::new(outside.clone()),
        entropy: entropy(random),
        transport: Some(Arc::new(outside.clone())),
    };
    let service = InlineMerchant::start(config, store, &surroundings)?;
    Ok(Running { service, clock, outside, open: Vec::new(), returns: None })
}

/// A request as the service gets it.
fn local(request: &HttpRequest) -> Request {
    let mut sent = crate::service::local(request, SHOP_URL);
    sent.head.headers.insert("host", "shop.test".parse().expect("a host is visible"));
    sent.head.headers.insert("content-type", "application/json".parse().expect("a type is visible"));
    sent
}

/// The request that creates the shop's only instance.
fn foundation() -> HttpRequest {
    let free = cents_text(0);
    let body = json!({
        "id": "default", "name": "The shop", "auth": { "method": "external" }, "payto_uris": [payto(SHOP_ACCOUNT)],
        "address": {}, "jurisdiction": {}, "default_max_wire_fee": free, "default_max_deposit_fee": cents_text(3),
        "default_wire_fee_amortization": 1, "default_wire_transfer_delay": { "d_us": 3_600_000_000_u64 },
        "default_pay_delay": { "d_us": 7_200_000_000_u64 },
    });
    HttpRequest::post(HttpContext::Merchant, format!("{SHOP_URL}management/instances"), &body)
}

fn cents_text(number: u64) -> String {
    crate::keys::cents(number).of(currency()).to_string()
}

/// The request that creates an order.
#[must_use]
pub fn order_request(order_id: &str, cents: u64) -> HttpRequest {
    let order = json!({ "order_id": order_id, "amount": cents_text(cents), "summary": "a thing" });
    let body = json!({ "order": order, "create_token": false, "refund_delay": { "d_us": REFUND_DELAY } });
    HttpRequest::post(HttpContext::Merchant, format!("{SHOP_URL}private/orders"), &body)
}

/// The request by which the owner approves refunds of an order, so much in all.
#[must_use]
pub fn refund_request(order_id: &str, cents: u64) -> HttpRequest {
    let body = json!({ "refund": cents_text(cents), "reason": "it is broken" });
    HttpRequest::post(HttpContext::Merchant, format!("{SHOP_URL}private/orders/{order_id}/refund"), &body)
}

/// The effect of a planted bug on a command: a verdict that the rules did not give.
fn plant(context: &Context, command: &Command) -> Option<Verdict> {
    match (context.bug, command) {
        (Some(Bug::ShopForgetsPayments), Command::Settle(_)) => Some(Ok(Answer::Settle(()))),
        _ => None,
    }
}
