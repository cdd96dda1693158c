//! Tips: reserves of the shop, what it gives from them, and what customers pick up.

use batzen_crypto::{BlindedDenomSignature, BlindedPlanchet, EddsaPublicKey, HashCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::{ARRAY_READ_MAX, array};
use crate::{Amount, Timestamp};

/// `POST private/reserves`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateTipReserveRequest {
    /// The sum that the shop is going to pay in.
    pub initial_balance: Amount,
    /// The exchange.
    pub exchange_url: String,
    /// The wire method of the shop's payment.
    pub wire_method: String,
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateTipReserveResponse {
    /// The reserve: the subject of the shop's transfer.
    pub reserve_pub: EddsaPublicKey,
    /// The exchange's account, exactly as the exchange names it.
    pub payto_uri: String,
}

/// Answer to `GET private/reserves`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipReserveList {
    /// The reserves.
    pub reserves: Vec<TipReserveSummary>,
}

/// A reserve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipReserveSummary {
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
    /// Its state.
    #[serde(flatten)]
    pub state: TipReserveState,
}

/// The state of a reserve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipReserveState {
    /// When it was created.
    pub creation_time: Timestamp,
    /// When the exchange closes it.
    pub expiration_time: Timestamp,
    /// The sum that the shop announced.
    pub merchant_initial_amount: Amount,
    /// The sum that the exchange received; zero until it received some.
    pub exchange_initial_amount: Amount,
    /// The sum that customers picked up.
    pub pickup_amount: Amount,
    /// The sum promised in tips.
    pub committed_amount: Amount,
    /// Whether tips can be given from it.
    pub active: bool,
}

/// Answer to `GET private/reserves/$RESERVE_PUB`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipReserveDetails {
    /// Its state.
    #[serde(flatten)]
    pub state: TipReserveState,
    /// The exchange's account that fills it.
    pub payto_uri: String,
    /// The exchange.
    pub exchange_url: String,
    /// The tips that were given from it, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tips: Option<Vec<TipOfReserve>>,
}

/// A tip of a reserve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipOfReserve {
    /// The tip.
    pub tip_id: HashCode,
    /// The amount.
    pub total_amount: Amount,
    /// Why it was given.
    pub reason: String,
}

/// `POST private/tips` and `POST private/reserves/$RESERVE_PUB/authorize-tip`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuthorizeTipRequest {
    /// The amount.
    pub amount: Amount,
    /// Why it is given.
    pub justification: String,
    /// The page that the customer sees afterwards.
    pub next_url: String,
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuthorizeTipResponse {
    /// The tip.
    pub tip_id: HashCode,
    /// The URI that the wallet opens.
    pub taler_tip_uri: String,
    /// The page for the customer.
    pub tip_status_url: String,
    /// It must be picked up before this time.
    pub tip_expiration: Timestamp,
}

/// Answer to `GET private/tips`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipList {
    /// The tips, in the order asked for.
    pub tips: Vec<TipSummary>,
}

/// A tip in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipSummary {
    /// Its number, by which lists continue.
    pub row_id: u64,
    /// The tip.
    pub tip_id: HashCode,
    /// The amount.
    pub tip_amount: Amount,
}

/// Answer to `GET private/tips/$TIP_ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipDetails {
    /// The amount.
    pub total_authorized: Amount,
    /// The sum that was picked up.
    pub total_picked_up: Amount,
    /// Why it was given.
    pub reason: String,
    /// It must be picked up before this time.
    pub expiration: Timestamp,
    /// The reserve that pays it.
    pub reserve_pub: EddsaPublicKey,
    /// The page for the customer.
    pub tip_status_url: String,
    /// The pickups, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pickups: Option<Vec<TipPickupSummary>>,
}

/// A part of a tip that was picked up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipPickupSummary {
    /// Hash of the planchets.
    pub pickup_id: HashCode,
    /// The number of coins.
    pub num_planchets: u32,
    /// The amount, withdrawal fees included.
    pub requested_amount: Amount,
}

/// Answer to `GET tips/$TIP_ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipStatus {
    /// The sum that can be picked up.
    pub tip_amount: Amount,
    /// The exchange that gives the coins.
    pub exchange_url: String,
    /// It must be picked up before this time.
    pub expiration: Timestamp,
    /// The page that the customer sees afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_url: Option<String>,
}

/// `POST tips/$TIP_ID/pickup`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PickUpTipRequest {
    /// The planchets.
    #[serde(deserialize_with = "array::<_, _, ARRAY_READ_MAX>")]
    pub planchets: Vec<TipPlanchet>,
}

/// A planchet of a tip. The shop signs the withdrawal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipPlanchet {
    /// Denomination of the coin.
    pub denom_pub_hash: HashCode,
    /// The blinded coin.
    pub coin_ev: BlindedPlanchet,
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PickUpTipResponse {
    /// For each planchet, in the order of the request.
    pub blind_sigs: Vec<TipBlindSig>,
}

/// A blind signature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TipBlindSig {
    /// By the planchet's denomination.
    pub blind_sig: BlindedDenomSignature,
}
