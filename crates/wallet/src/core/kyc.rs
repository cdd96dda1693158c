//! Identity checks: an exchange may answer 451 before it lets money through.
//!
//! Nothing is lost meanwhile. The wallet remembers the requirement, shows the page where the user identifies
//! herself, waits until the exchange is satisfied, and sends the same request again.

use batzen_protocol::api::errors::KycRequired;
use batzen_protocol::api::exchange::KycRedirect;
use serde::{Deserialize, Serialize};

use super::http::{Context, HttpRequest, HttpResponse};
use crate::core::error::Result;

/// An identity check that the exchange requires first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KycWanted {
    /// The account that it is about.
    pub(crate) h_payto: String,
    /// Number of the requirement.
    pub(crate) requirement_row: u64,
    /// URL for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl KycWanted {
    /// The requirement in an answer 451; `what` names the request.
    pub(crate) fn read(response: &HttpResponse, what: &'static str) -> Result<Self> {
        let answer: KycRequired = response.json(what)?;
        let (h_payto, requirement_row) = (answer.h_payto.to_string(), answer.requirement_row);
        Ok(Self { h_payto, requirement_row, url: None })
    }

    /// Asks whether the requirement is met. Once the user knows the page, the answer may wait for her.
    pub(crate) fn request(&self, base_url: &str, poll_ms: u64) -> HttpRequest {
        let url = format!("{base_url}kyc-check/{}/{}/individual", self.requirement_row, self.h_payto);
        let poll_ms = if self.url.is_none() { 0 } else { poll_ms };
        HttpRequest::long_poll(Context::Withdraw, url, "timeout_ms", poll_ms)
    }

    /// Processes the answer to [`KycWanted::request`]. `None` if the requirement is met.
    pub(crate) fn receive(&self, response: &HttpResponse) -> Result<Option<Self>> {
        match response.status {
            200 | 204 => Ok(None),
            202 => {
                let pending: KycRedirect = response.json("asking about the identity check")?;
                Ok(Some(Self { url: Some(pending.kyc_url), ..self.clone() }))
            }
            _ => Err(response.refusal("asking about the identity check")),
        }
    }

    /// Describes the user's next step in plain words. `meanwhile` says where the money is.
    pub(crate) fn words(&self, meanwhile: &str) -> String {
        match &self.url {
            Some(url) => {
                format!("your provider asks you to identify yourself here: {url} ({meanwhile} meanwhile)")
            }
            None => format!("your provider asks you to identify yourself ({meanwhile} meanwhile)"),
        }
    }
}
