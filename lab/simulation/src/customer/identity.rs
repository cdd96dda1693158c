//! A customer's browser: fills in the form of the exchange when the wallet shows its address.

use batzen_wallet::core::http::{Context as HttpContext, HttpRequest};
use batzen_wallet::core::state::OpKind;
use serde_json::json;

use super::{Customer, Purpose};
use crate::message::{Context, ProcessId};

impl Customer {
    /// Fills in the forms that the wallet shows and whose entries the exchange has not confirmed.
    pub(super) fn identify(&mut self, context: &mut Context) {
        if self.questions.values().any(|(purpose, _)| *purpose == Purpose::Form) {
            return;
        }
        let shown = self.state.open_operations().find_map(|operation| match &operation.kind {
            OpKind::Withdrawal(record) => record.kyc.as_ref()?.url.clone(),
            _ => None,
        });
        let Some(request) = shown.filter(|url| !self.forms.contains(url)).and_then(|url| filled_in(&url))
        else {
            return;
        };
        self.ask(context, ProcessId::Exchange, request, Purpose::Form);
    }

    /// The exchange has confirmed the entries of a form.
    pub(super) fn filled_in(&mut self, context: &mut Context, request: &HttpRequest) {
        context.marks.meet("kyc.submitted");
        let shown = self.state.open_operations().find_map(|operation| match &operation.kind {
            OpKind::Withdrawal(record) => record.kyc.as_ref()?.url.clone(),
            _ => None,
        });
        self.forms.extend(shown.filter(|url| filled_in(url).as_ref() == Some(request)));
    }
}

/// The request by which the page at this address sends the entries.
fn filled_in(url: &str) -> Option<HttpRequest> {
    let (page, query) = url.split_once('?')?;
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let body = json!({
        "account": value("account")?,
        "token": value("token")?,
        "attributes": {
            "full_name": "A. Customer",
            "birthdate": "1990-01-01",
            "address": "Marktgasse 1, 3000 Bern",
            "country": "CH",
            "nationality": "CH",
            "document_number": "C0000000",
        },
    });
    Some(HttpRequest::post(HttpContext::Info, page.to_owned(), &body))
}
