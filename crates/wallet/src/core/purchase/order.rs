//! Orders: reads `taler://pay` URIs, and claims orders.

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature};
use batzen_protocol::{TalerUri, Timestamp, canonical};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::http::{Context, HttpRequest, HttpResponse};
use super::super::state::{OpId, OpKind};
use super::super::url::{normalise_base_url, versions_compatible};
use super::super::{Change, Entropy, WalletState};
use super::contract::{self, MAX_CONTRACT_SIZE};
use super::{ContractTerms, Order, OrderKey, PROTOCOL_VERSION, PurchaseStage};
use crate::core::error::{Result, bad_input};

/// Longest order number, in bytes.
const MAX_ORDER_ID_SIZE: usize = 255;
/// Longest session, in bytes.
const MAX_SESSION_SIZE: usize = 1024;

/// Merchant: another wallet has claimed the order.
const ALREADY_CLAIMED: u32 = 2301;

/// The content of a `taler://pay` URI.
#[derive(Clone, PartialEq, Eq)]
pub struct PayUri {
    /// Base URL of the merchant.
    pub(crate) merchant_base_url: String,
    /// The order's number.
    pub(crate) order_id: String,
    /// The session to which the payment is to be bound; may be empty.
    pub(crate) session_id: String,
    claim_token: Option<String>,
    nonce_priv: Option<EddsaPrivateKey>,
}

impl std::fmt::Debug for PayUri {
    /// Omits the claim token and the key: whoever has them can claim the order.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayUri")
            .field("merchant_base_url", &self.merchant_base_url)
            .field("order_id", &self.order_id)
            .finish_non_exhaustive()
    }
}

impl PayUri {
    /// Parses a URI.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if it is not one.
    pub fn parse(uri: &str) -> Result<Self> {
        let malformed = |reason: String| bad_input("taler URI", reason);
        let parsed = TalerUri::parse(uri.trim()).map_err(|error| malformed(error.to_string()))?;
        let TalerUri::Pay { merchant_url, order_id, session_id, claim_token, nonce_priv } = parsed else {
            return Err(malformed("it is not about an order of a shop".to_owned()));
        };
        // The contract must contain this very text, so it is checked and not changed.
        if normalise_base_url(&merchant_url)? != merchant_url {
            return Err(malformed("the shop's URL in it is not in its shortest form".to_owned()));
        }
        if order_id.len() > MAX_ORDER_ID_SIZE || matches!(order_id.as_str(), "." | "..") {
            return Err(malformed("the number of the order cannot be used".to_owned()));
        }
        if session_id.len() > MAX_SESSION_SIZE {
            return Err(malformed("the session is too long".to_owned()));
        }
        let nonce_priv = match nonce_priv {
            Some(text) => Some(
                text.parse().map_err(|_| malformed("n= is not a key of 32 bytes in base 32".to_owned()))?,
            ),
            None => None,
        };
        Ok(Self { merchant_base_url: merchant_url, order_id, session_id, claim_token, nonce_priv })
    }

    pub(crate) fn key(&self) -> OrderKey {
        (self.merchant_base_url.clone(), self.order_id.clone())
    }

    /// Asks the merchant's backend for its version.
    pub(crate) fn config_request(&self) -> HttpRequest {
        HttpRequest::get(Context::Merchant, format!("{}config", self.merchant_base_url))
    }

    /// Checks that the merchant's backend speaks this wallet's protocol.
    ///
    /// # Errors
    /// If it does not.
    pub(crate) fn check_config(&self, response: &HttpResponse) -> Result<()> {
        #[derive(Deserialize)]
        struct Config {
            version: String,
        }
        const WHAT: &str = "asking the shop for its version";
        if response.status != 200 {
            return Err(response.refusal(WHAT));
        }
        let config: Config = response.json(WHAT)?;
        if versions_compatible(PROTOCOL_VERSION, &config.version) {
            return Ok(());
        }
        Err(bad_input(
            "taler URI",
            format!(
                "the shop's server speaks protocol {}, this wallet speaks {PROTOCOL_VERSION}",
                super::printable(&config.version)
            ),
        ))
    }

    /// The order, with a fresh key if the wallet does not know it. The changes must be durable before the
    /// order is claimed: without the key nobody can pay it.
    #[must_use]
    pub fn open(
        &self,
        state: &WalletState,
        now: Timestamp,
        entropy: &mut dyn Entropy,
    ) -> (Order, Vec<Change>) {
        if let Some(order) = state.orders.get(&self.key()) {
            let mut order = order.clone();
            // An earlier URI may have had no token, or a wrong one.
            if self.claim_token.is_none() || self.claim_token == order.claim_token {
                return (order, Vec::new());
            }
            order.claim_token.clone_from(&self.claim_token);
            return (order.clone(), vec![Change::Order(Box::new(order))]);
        }
        let nonce_priv =
            self.nonce_priv.clone().unwrap_or_else(|| EddsaPrivateKey::from_bytes(entropy.array()));
        let order = Order {
            merchant_base_url: self.merchant_base_url.clone(),
            order_id: self.order_id.clone(),
            claim_token: self.claim_token.clone(),
            nonce_priv,
            created: now,
            contract: None,
        };
        (order.clone(), vec![Change::Order(Box::new(order))])
    }
}

impl Order {
    /// Claims the order. A repetition gets the same contract.
    #[must_use]
    pub fn claim_request(&self) -> HttpRequest {
        #[derive(Serialize)]
        struct Claim<'a> {
            nonce: EddsaPublicKey,
            #[serde(skip_serializing_if = "Option::is_none")]
            token: Option<&'a str>,
        }
        let body = Claim { nonce: self.nonce_priv.public_key(), token: self.claim_token.as_deref() };
        HttpRequest::post(Context::Merchant, self.url("claim"), &body)
    }

    fn url(&self, action: &str) -> String {
        format!("{}orders/{}/{action}", self.merchant_base_url, self.order_id)
    }

    /// Reads and checks the contract.
    ///
    /// # Errors
    /// If the merchant refuses, or the contract is not acceptable.
    pub fn read_claim(self, response: &HttpResponse) -> Result<Self> {
        const WHAT: &str = "claiming the order";
        match (response.status, response.code().to_u32()) {
            (200, _) => {}
            (404, code) if code != 0 => {
                let reason = "the shop knows no such order, or its claim token is wrong";
                return Err(bad_input("taler URI", reason));
            }
            (409, ALREADY_CLAIMED) => {
                return Err(bad_input("taler URI", "another wallet has claimed this order"));
            }
            _ => return Err(response.refusal(WHAT)),
        }
        let malformed = |reason: String| response.malformed(WHAT, reason);
        if response.body.len() > MAX_CONTRACT_SIZE {
            return Err(malformed(format!("the contract is larger than {MAX_CONTRACT_SIZE} bytes")));
        }
        let mut answer = canonical::parse(&response.body).map_err(|error| malformed(error.to_string()))?;
        let merchant_sig = answer.get("sig").and_then(Value::as_str);
        let merchant_sig: EddsaSignature = merchant_sig
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| malformed("it has no signature".to_owned()))?;
        let contract = answer
            .get_mut("contract_terms")
            .map(Value::take)
            .ok_or_else(|| malformed("it has no contract".to_owned()))?;
        let contract = contract::check(&self, contract, merchant_sig)?;
        Ok(Self { contract: Some(contract), ..self })
    }
}

/// The purchase of an order by this wallet, unless it failed.
#[must_use]
pub(crate) fn purchase_of(state: &WalletState, key: &OrderKey) -> Option<OpId> {
    let is_it = |kind: &OpKind| match kind {
        OpKind::Purchase(record) => {
            let terms = record.terms();
            record.stage != PurchaseStage::Failed
                && terms.merchant_base_url == key.0
                && terms.order_id == key.1
        }
        _ => false,
    };
    state.operations.values().rev().find(|operation| is_it(&operation.kind)).map(|operation| operation.id)
}

/// An earlier paid purchase of the same thing, a web page, at the same merchant.
#[must_use]
pub(crate) fn paid_before(state: &WalletState, terms: &ContractTerms) -> Option<OpId> {
    let page = terms.page()?;
    let is_it = |kind: &OpKind| match kind {
        OpKind::Purchase(record) => {
            let other = record.terms();
            record.stage == PurchaseStage::Done
                && other.merchant_base_url == terms.merchant_base_url
                && other.merchant_pub == terms.merchant_pub
                && other.page() == Some(page)
                && other.sells_the_same(terms)
        }
        _ => false,
    };
    state.operations.values().rev().find(|operation| is_it(&operation.kind)).map(|operation| operation.id)
}
