//! Turns the items of a signing request into its answer.

use std::sync::Arc;

use batzen_crypto::CryptoError;
use batzen_crypto::denom::{BlindedDenomSignature, BlindedPlanchet, Cipher, ExchangeWithdrawValues};
use batzen_engine::{Collector, PoolBusy, Ticket};
use batzen_protocol::Timestamp;

use crate::frame::{Header, ItemStatus, Kind, Malformed, Status};
use crate::items::{Item, KeyId, SignedItem};
use crate::local_signer::{HeldBlind, HeldSign, HeldValues};
use crate::modules::HeldKey;
use crate::policy;
use crate::state::{Signer, Snapshot};

/// The items of a request: each has its result already, or a position among the submitted ones.
type Places = Vec<Result<(), ItemStatus>>;

/// A request whose items are queued on the CPU pool.
pub(super) enum Making {
    Blind(Places, Ticket<Result<BlindedDenomSignature, CryptoError>>),
    Values(Places, Ticket<ExchangeWithdrawValues>),
    Sign(Places, Ticket<batzen_crypto::EddsaSignature>),
}

/// Reads a request.
pub(super) fn read_items(header: &Header, body: &[u8]) -> Result<Vec<Item>, Malformed> {
    let size = header.kind.request_item(header.modulus);
    body.chunks_exact(size).map(|bytes| Item::parse(header.kind, bytes)).collect()
}

fn usable<'a>(
    keys: &'a Snapshot,
    id: &KeyId,
    cipher: Cipher,
    now: Timestamp,
) -> Result<&'a Arc<HeldKey>, ItemStatus> {
    let key = keys.denoms.get(id).filter(|key| key.cipher() == cipher).ok_or(ItemStatus::UnknownKey)?;
    if policy::in_period(key.info.anchor, key.signs_until(), now) {
        Ok(key)
    } else {
        Err(ItemStatus::OutOfPeriod)
    }
}

fn blind(keys: &Snapshot, item: Item, now: Timestamp) -> Result<HeldBlind, ItemStatus> {
    match item {
        Item::Rsa { key, blinded } => {
            let key = usable(keys, &key, Cipher::Rsa, now)?;
            // The answer has the size that the frame's header states.
            if key.modulus_bytes() != Some(blinded.len()) {
                return Err(ItemStatus::Planchet);
            }
            Ok(HeldBlind {
                key: Arc::clone(key),
                planchet: BlindedPlanchet::Rsa { blinded },
                // Matters only for Clause Blind Schnorr.
                operation: batzen_crypto::cs::CsOperation::Withdraw,
            })
        }
        Item::Cs { key, operation, nonce, challenges: [c0, c1] } => Ok(HeldBlind {
            key: Arc::clone(usable(keys, &key, Cipher::Cs, now)?),
            planchet: BlindedPlanchet::Cs { nonce, c0, c1 },
            operation,
        }),
        _ => unreachable!("items are of the frame's kind"),
    }
}

fn values(keys: &Snapshot, item: Item, now: Timestamp) -> Result<HeldValues, ItemStatus> {
    let Item::Values { key, operation, nonce } = item else { unreachable!("items are of the frame's kind") };
    Ok(HeldValues { key: Arc::clone(usable(keys, &key, Cipher::Cs, now)?), nonce, operation })
}

fn sign(keys: &Snapshot, item: Item, now: Timestamp) -> Result<HeldSign, ItemStatus> {
    let Item::Eddsa { key, message } = item else { unreachable!("items are of the frame's kind") };
    let key = keys.signing.get(&key).ok_or(ItemStatus::UnknownKey)?;
    if !policy::may_sign(&message) {
        return Err(ItemStatus::NotAllowed);
    }
    if !policy::in_period(key.info.anchor, key.signs_until(), now) {
        return Err(ItemStatus::OutOfPeriod);
    }
    Ok(HeldSign { key: Arc::clone(key), message: message.into() })
}

/// Queues the permitted items. The others have their results already.
fn submit<I: Send + Sync + 'static, O: Send + 'static>(
    collector: &Collector<I, O>,
    orders: impl Iterator<Item = Result<I, ItemStatus>>,
) -> Result<(Places, Ticket<O>), PoolBusy> {
    let mut accepted = Vec::new();
    let places = orders.map(|order| order.map(|order| accepted.push(order))).collect();
    Ok((places, collector.submit(accepted)?))
}

/// Starts a signing request.
pub(super) fn begin(signer: &Signer, kind: Kind, items: Vec<Item>) -> Result<Making, Status> {
    let (keys, now) = (signer.keys(), signer.clock.now());
    let busy = |PoolBusy| Status::Busy;
    let items = items.into_iter();
    match kind {
        Kind::Rsa | Kind::Cs => {
            let orders = items.map(|item| blind(&keys, item, now));
            submit(&signer.local_signer.blind, orders).map(|(places, ticket)| Making::Blind(places, ticket))
        }
        Kind::Values => {
            let orders = items.map(|item| values(&keys, item, now));
            submit(&signer.local_signer.values, orders).map(|(places, ticket)| Making::Values(places, ticket))
        }
        _ => {
            let orders = items.map(|item| sign(&keys, item, now));
            submit(&signer.local_signer.sign, orders).map(|(places, ticket)| Making::Sign(places, ticket))
        }
    }
    .map_err(busy)
}

/// Puts the results into the positions of the accepted items.
fn join<O>(
    places: Places,
    made: Vec<O>,
    result: impl Fn(O) -> Result<SignedItem, ItemStatus>,
) -> Vec<Result<SignedItem, ItemStatus>> {
    let mut made = made.into_iter();
    let place = |place: Result<(), ItemStatus>| {
        place.and_then(|()| result(made.next().expect("one result an order")))
    };
    places.into_iter().map(place).collect()
}

impl Making {
    /// Waits for the results.
    pub(super) async fn finish(self) -> Vec<Result<SignedItem, ItemStatus>> {
        match self {
            Self::Blind(places, ticket) => join(places, ticket.await, |result| match result {
                Ok(BlindedDenomSignature::Rsa(signature)) => Ok(SignedItem::Rsa(signature)),
                Ok(BlindedDenomSignature::Cs(signature)) => Ok(SignedItem::Cs(signature)),
                Err(CryptoError::Fault | CryptoError::Internal) => Err(ItemStatus::Failed),
                Err(_) => Err(ItemStatus::Planchet),
            }),
            Self::Values(places, ticket) => join(places, ticket.await, |values| match values {
                ExchangeWithdrawValues::Cs { r0, r1 } => Ok(SignedItem::Values([r0, r1])),
                ExchangeWithdrawValues::Rsa => unreachable!("the key's cipher was checked"),
            }),
            Self::Sign(places, ticket) => {
                join(places, ticket.await, |signature| Ok(SignedItem::Eddsa(signature)))
            }
        }
    }
}
