//! Rules that no command of another crate reaches.

use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash, Wtid};
use batzen_engine::Batcher;
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;
use batzen_tables::merchant::{
    AccessTokenKey, AccessTokenRow, InstanceRow, OrderWireKey, OrderWireRow, OrderWires, TemplateKey,
    TemplateRow, TipReserveKey, TipReserveRow, TransferKey, TransferRow, Transfers, WebhookKey, WebhookRow,
};

use super::extras::{HOOKS_MAX, TEMPLATES_MAX, TOKENS_MAX};
use super::tips::RESERVES_MAX;
use super::*;

const SHOP: &str = "books";

struct World {
    store: Store,
    batcher: Batcher<MerchantRules>,
}

impl World {
    fn new() -> Self {
        let store = Store::new(MemoryBackend::new());
        let world = Self { batcher: Batcher::new(Arc::new(MerchantRules::default()), store.clone()), store };
        let row = InstanceRow {
            merchant_pub: EddsaPublicKey::from_bytes([1; 32]),
            merchant_priv: Some([1; 32]),
            token_hash: None,
            name: SHOP.to_owned(),
            address: "{}".to_owned(),
            jurisdiction: "{}".to_owned(),
            email: None,
            website: None,
            logo: None,
            default_max_wire_fee: Money::ZERO,
            default_max_deposit_fee: Money::ZERO,
            default_wire_fee_amortization: 1,
            default_wire_transfer_delay: Duration::ZERO,
            default_pay_delay: Duration::ZERO,
        };
        let shop = CreateInstance { id: SHOP.to_owned(), row, accounts: Vec::new() };
        assert_eq!(world.at(0, vec![shop.into()]), [None]);
        world
    }

    /// Executes commands in one batch at a time in seconds, and returns why each was refused.
    fn at(&self, time: u64, commands: Vec<Command>) -> Vec<Option<Refusal>> {
        let verdicts = self.batcher.run(&commands, &move || Timestamp::from_secs(time)).unwrap();
        verdicts.into_iter().map(Result::err).collect()
    }

    /// Executes so many commands together, of which only so many succeed.
    fn has_room(&self, time: u64, tried: usize, max: usize, command: impl Fn(usize) -> Command) {
        let refusals = self.at(time, (0..tried).map(command).collect());
        assert!(refusals[..max].iter().all(Option::is_none), "{refusals:?}");
        let is_full = |refusal: &Option<Refusal>| matches!(refusal, Some(Refusal::TooMany(_)));
        assert!(refusals[max..].iter().all(is_full), "{refusals:?}");
    }
}

fn hash(n: usize) -> HashCode {
    batzen_crypto::hash::sha512_parts(&[&n.to_le_bytes()])
}

#[test]
fn what_is_added_at_the_same_time_stays_within_its_limit() {
    let world = World::new();
    let instance = || SHOP.to_owned();
    let hook = |n: usize| {
        let key = WebhookKey { instance: instance(), webhook_id: n.to_string() };
        let row = WebhookRow {
            event_type: "pay".to_owned(),
            url: "https://shop.example/".to_owned(),
            http_method: "POST".to_owned(),
            header_template: None,
            body_template: None,
        };
        EditWebhook { key, edit: Edit::Create(row) }.into()
    };
    world.has_room(1, HOOKS_MAX + 3, HOOKS_MAX, hook);
    // The same again is no more.
    world.has_room(1, HOOKS_MAX, HOOKS_MAX, hook);
    world.has_room(1, TEMPLATES_MAX + 1, TEMPLATES_MAX, |n| {
        let key = TemplateKey { instance: instance(), template_id: n.to_string() };
        let row = TemplateRow { description: String::new(), contract: "{}".to_owned() };
        EditTemplate { key, edit: Edit::Create(row) }.into()
    });
    world.has_room(1, RESERVES_MAX + 1, RESERVES_MAX, |n| {
        let mut reserve_pub = [0; 32];
        reserve_pub[..8].copy_from_slice(&n.to_le_bytes());
        let row = TipReserveRow {
            instance: instance(),
            reserve_priv: Some([0; 32]),
            exchange_url: String::new(),
            payto_uri: String::new(),
            created: Timestamp::ZERO,
            expires: Timestamp::NEVER,
            merchant_initial: Money::ZERO,
            exchange_initial: Money::ZERO,
            committed: Money::ZERO,
            picked_up: Money::ZERO,
        };
        CreateTipReserve { key: TipReserveKey { reserve_pub: EddsaPublicKey::from_bytes(reserve_pub) }, row }
            .into()
    });
    let token = |first: usize, expires| {
        move |n: usize| {
            let key = AccessTokenKey { instance: SHOP.to_owned(), token_hash: hash(first + n) };
            let row = AccessTokenRow {
                row_id: n as u64,
                scope: "all".to_owned(),
                description: String::new(),
                created: Timestamp::ZERO,
                expires: Timestamp::from_secs(expires),
            };
            EditToken { key, edit: Edit::Create(row) }.into()
        }
    };
    world.has_room(1, TOKENS_MAX + 1, TOKENS_MAX, token(0, 10));
    world.has_room(10, TOKENS_MAX + 1, TOKENS_MAX, token(1_000, 20));
}

#[test]
fn coins_are_confirmed_with_the_statement_that_was_checked() {
    let world = World::new();
    let (key, order) =
        (TransferKey { transfer: ShortHash::from_bytes([7; 32]) }, ShortHash::from_bytes([8; 32]));
    let row = TransferRow {
        instance: SHOP.to_owned(),
        row_id: 1,
        exchange_url: "https://exchange.example/".to_owned(),
        wtid: Wtid::from_bytes([9; 32]),
        payto_uri: String::new(),
        credit_amount: Some(Money::ZERO),
        total: None,
        wire_fee: None,
        execution_time: None,
        verified: false,
        problem: 0,
        exchange_pub: None,
        exchange_sig: None,
    };
    let note = || NoteTransfer { key: key.clone(), row: row.clone() }.into();
    let forget = || DeleteTransfer { key: key.clone() }.into();
    let statement = Statement {
        total: Money::ZERO,
        wire_fee: Money::ZERO,
        execution_time: Timestamp::ZERO,
        exchange_pub: EddsaPublicKey::from_bytes([1; 32]),
        exchange_sig: EddsaSignature::from_bytes([1; 64]),
    };
    let record = |coin: u8, is_last| {
        let wire = OrderWireRow {
            transfer: key.transfer,
            exchange_url: row.exchange_url.clone(),
            wtid: row.wtid,
            execution_time: Timestamp::ZERO,
            amount: Money::ZERO,
            confirmed: true,
        };
        let checked = CheckedTransfer {
            key: key.clone(),
            credit_amount: row.credit_amount,
            statement: statement.clone(),
            is_last,
        };
        let coin = OrderWireKey { order, coin_pub: EddsaPublicKey::from_bytes([coin; 32]) };
        RecordWires { wires: vec![(coin, wire)], checked: Some(checked) }.into()
    };
    let transfer = || world.store.get::<Transfers>(&key).unwrap().unwrap().row;
    let coins = || world.store.lookup::<OrderWires>(OrderWires::BY_TRANSFER, &key.transfer).unwrap().len();
    // The shop forgets it while it is checked: no coin is confirmed.
    assert_eq!(
        world.at(1, vec![note(), forget(), record(1, true)]),
        [None, None, Some(Refusal::TransferUnknown)]
    );
    assert_eq!(coins(), 0);
    // A crash between two parts: it stays, with the amount that the shop has reported, until all are booked.
    assert_eq!(
        world.at(2, vec![note(), record(1, false), forget()]),
        [None, None, Some(Refusal::TransferVerified)]
    );
    assert_eq!((transfer().verified, coins()), (false, 1));
    let refused = RefuseTransfer { key: key.clone(), problem: 1 };
    assert_eq!(world.at(3, vec![note(), refused.into(), record(1, false), record(2, true)]), vec![None; 4]);
    assert_eq!((transfer().verified, transfer().problem, coins()), (true, 0, 2));
    // What is verified stays so.
    let refused = RefuseTransfer { key: key.clone(), problem: 1 };
    assert_eq!(world.at(4, vec![record(1, false), refused.into()]), [None, None]);
    assert_eq!((transfer().verified, transfer().problem), (true, 0));
}
