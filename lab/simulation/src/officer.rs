//! An officer of the exchange: looks at the entries of customers now and then, and approves each.

use std::collections::BTreeMap;
use std::rc::Rc;

use batzen_wallet::core::http::{Context as HttpContext, HttpRequest, HttpResponse};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::keys::EXCHANGE_URL;
use crate::message::{Body, Context, Message, ProcessId, Timer};
use crate::swarm::SECOND;

/// The officer's token.
pub(crate) const TOKEN: &str = "token-of-the-officer";

/// The officer.
#[derive(Default)]
pub struct Officer {
    /// The requests that are not answered yet, by their calls.
    asked: BTreeMap<u64, HttpRequest>,
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    h_payto: Value,
    provider: String,
    case: Value,
}

impl Officer {
    /// Begins to work, if this run has limits.
    pub fn start(&mut self, context: &mut Context) {
        if context.swarm.identifies {
            context.wake(ProcessId::Officer, 0, 600 * SECOND, Timer::Act);
        }
    }

    fn ask(&mut self, context: &mut Context, mut request: HttpRequest) {
        request.basic_auth = Some(("officer".to_owned(), TOKEN.to_owned()));
        let call = context.call();
        self.asked.insert(call, request.clone());
        let body = Body::Ask(Rc::new(request));
        context.send(Message { from: ProcessId::Officer, to: ProcessId::Exchange, call, body });
    }

    /// Asks for the cases.
    pub fn timer(&mut self, context: &mut Context) {
        let gap = context.random.between(600, 7_200) * SECOND;
        context.wake(ProcessId::Officer, 0, gap, Timer::Act);
        self.ask(context, HttpRequest::get(HttpContext::Info, format!("{EXCHANGE_URL}kyc-officer/cases")));
    }

    /// The exchange answers: decides on the cases. What a lost message leaves undecided is decided the next time.
    pub fn arrive(&mut self, context: &mut Context, message: &Message) {
        let Body::Reply(response) = &message.body else { return };
        let Some(request) = self.asked.remove(&message.call) else { return };
        if request.body.is_some() {
            if response.status == 200 {
                context.marks.meet("kyc.decided");
            }
            return;
        }
        for decision in decisions(response) {
            self.ask(context, decision);
        }
    }
}

fn decisions(response: &HttpResponse) -> Vec<HttpRequest> {
    let Ok(Cases { cases }) = serde_json::from_slice(&response.body) else { return Vec::new() };
    let decision = |Case { h_payto, provider, case }: Case| {
        let body = json!({
            "h_payto": h_payto, "provider": provider, "case": case, "approved": true, "reason": "seen",
        });
        HttpRequest::post(HttpContext::Info, format!("{EXCHANGE_URL}kyc-officer/decisions"), &body)
    };
    cases.into_iter().map(decision).collect()
}
