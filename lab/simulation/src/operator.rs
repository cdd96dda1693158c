//! The exchange's operator: sends orders of the master key, and repeats each until it is answered.

use std::collections::BTreeMap;
use std::rc::Rc;

use batzen_protocol::api::exchange::RevokeRequest;
use batzen_protocol::signatures::{MasterDenominationKeyRevoked, SignedMessage};
use batzen_wallet::core::http::{Context as HttpContext, HttpRequest};

use crate::host::{Step, Stop};
use crate::keys::{EXCHANGE_URL, Keys};
use crate::message::{Body, Context, Message, ProcessId, Timer};
use crate::swarm::SECOND;

/// The operator of the exchange.
#[derive(Default)]
pub struct Operator {
    /// The order to revoke a denomination, until it is acknowledged.
    revocation: Option<HttpRequest>,
    /// The requests that are not answered yet, by their calls.
    asked: BTreeMap<u64, HttpRequest>,
}

impl Operator {
    /// Decides when to revoke, if this run has a revocation.
    pub fn start(&mut self, context: &mut Context) {
        let Some(revocation) = context.swarm.revocation else { return };
        let keys = Keys::get();
        let h_denom_pub = keys.denoms[revocation.denom].h;
        let master_sig = MasterDenominationKeyRevoked { h_denom_pub }.sign(&keys.master);
        let url = format!("{EXCHANGE_URL}management/denominations/{h_denom_pub}/revoke");
        let request = HttpRequest::post(HttpContext::Info, url, &RevokeRequest { master_sig });
        self.revocation = Some(request);
        context.wake(ProcessId::Operator, 0, revocation.after, Timer::Act);
    }

    /// Sends the order, if it is not acknowledged.
    fn ask(&mut self, context: &mut Context) {
        let Some(request) = &self.revocation else { return };
        let call = context.call();
        self.asked.insert(call, request.clone());
        let body = Body::Ask(Rc::new(request.clone()));
        context.send(Message { from: ProcessId::Operator, to: ProcessId::Exchange, call, body });
        let patience = context.random.between(30, 600) * SECOND;
        context.wake(ProcessId::Operator, 0, patience, Timer::GiveUp(call));
    }

    /// A timer fires.
    pub fn timer(&mut self, context: &mut Context, timer: Timer) {
        match timer {
            Timer::GiveUp(call) if self.asked.remove(&call).is_none() => {}
            _ => self.ask(context),
        }
    }

    /// The exchange answers.
    ///
    /// # Errors
    /// If it refuses the order.
    pub fn arrive(&mut self, context: &mut Context, message: &Message) -> Step {
        let Body::Reply(response) = &message.body else { return Ok(()) };
        if self.asked.remove(&message.call).is_none() {
            return Ok(());
        }
        match response.status {
            204 => {
                context.marks.meet("keys.revoked");
                self.revocation = None;
                context.revoked = context.swarm.revocation.map(|revocation| revocation.denom);
                Ok(())
            }
            400..=499 => Err(Stop::wrong(format!("the exchange refuses its operator: {}", response.code()))),
            _ => {
                let pause = context.random.between(10, 120) * SECOND;
                context.wake(ProcessId::Operator, 0, pause, Timer::Act);
                Ok(())
            }
        }
    }

    /// Returns whether all orders are acknowledged.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.revocation.is_none()
    }
}
