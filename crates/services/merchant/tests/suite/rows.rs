//! Rows of shops and orders, for tests of the rules.

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_store::List;
use batzen_tables::merchant::{InstanceRow, OrderRow};

/// A shop with this name and key.
pub(crate) fn instance_row(name: &str, key: u8) -> InstanceRow {
    InstanceRow {
        merchant_pub: EddsaPublicKey::from_bytes([key; 32]),
        merchant_priv: Some([key; 32]),
        token_hash: None,
        name: name.to_owned(),
        address: "{}".to_owned(),
        jurisdiction: "{}".to_owned(),
        email: None,
        website: None,
        logo: None,
        default_max_wire_fee: Money::ZERO,
        default_max_deposit_fee: Money::ZERO,
        default_wire_fee_amortization: 1,
        default_wire_transfer_delay: Duration::from_days(1),
        default_pay_delay: Duration::from_days(1),
    }
}

/// An order without price and products that nobody has claimed.
pub(crate) fn order_row(instance: &str, id: u8, row_id: u64, terms: String) -> OrderRow {
    OrderRow {
        instance: instance.to_owned(),
        order_id: id.to_string(),
        row_id,
        created: Timestamp::ZERO,
        claim_token: None,
        h_request: HashCode::ZERO,
        terms,
        amount: Money::ZERO,
        max_fee: Money::ZERO,
        max_wire_fee: Money::ZERO,
        wire_fee_amortization: 1,
        fulfillment_url: None,
        pay_deadline: Timestamp::NEVER,
        nonce: None,
        h_contract: None,
        paid: None,
        refund_approved: Money::ZERO,
        wired: false,
        products: List::default(),
        quantities: List::default(),
        holds_stock: false,
    }
}
