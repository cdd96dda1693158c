//! Identification by officers: the user fills in a form, and officers decide.

use batzen_http::Head;
use futures_util::future::{BoxFuture, ready};

use super::{Identity, KycLogic, Login, NotIdentified, Process};

/// The form is a page of this exchange (`api/kyc/form.rs`).
pub(super) struct Manual;

impl KycLogic for Manual {
    fn user_url(&self, process: Process<'_>) -> String {
        let Process { base_url, section, h_payto, token } = process;
        format!("{base_url}kyc-form/{section}?account={h_payto}&token={token}")
    }

    fn login_url(&self, _: Login<'_>) -> Option<String> {
        None
    }

    fn prove<'a>(&'a self, _: Login<'a>, _: &'a Head) -> BoxFuture<'a, Result<Identity, NotIdentified>> {
        Box::pin(ready(Err(NotIdentified::OtherWay)))
    }
}
