//! Money for a test: reserves that the bank has credited, and coins from them.

use std::sync::Arc;

use batzen_crypto::{EddsaPrivateKey, ExchangeWithdrawValues, PlanchetMasterSecret};
use batzen_http::client::Client;
use batzen_protocol::Money;
use batzen_protocol::api::exchange::{BatchWithdrawRequest, BlindSignatures};

use crate::common::customer::{credit, fill};
use crate::common::site::Site;
use crate::crash::coins::{Coin, Denom, Planchet};

/// Credits reserves, and has the exchange book the credits.
pub(super) async fn fund(client: &Client, site: &Site, count: usize, each: Money) -> Vec<EddsaPrivateKey> {
    let mut reserves = Vec::new();
    for _ in 0..count {
        let reserve = EddsaPrivateKey::generate();
        fill(client, site.bank_port, &credit(reserve.public_key(), each, "ann")).await;
        reserves.push(reserve);
    }
    site.work("wirewatch", 0);
    reserves
}

/// Withdraws coins of an RSA denomination in one request.
pub(super) async fn withdraw(
    client: Client,
    url: String,
    reserve: EddsaPrivateKey,
    denom: Arc<Denom>,
    count: usize,
) -> Vec<Coin> {
    let planchets = planchets(&denom, count);
    let url = format!("{url}reserves/{}/batch-withdraw", reserve.public_key());
    let body = batch_withdraw(&planchets, &reserve);
    let answer: BlindSignatures = client.post_json(url, &body).await.unwrap().ok().unwrap();
    planchets.into_iter().zip(&answer.ev_sigs).map(|(planchet, sig)| planchet.finish(&sig.ev_sig)).collect()
}

pub(super) fn planchets(denom: &Arc<Denom>, count: usize) -> Vec<Planchet> {
    let planchet = |_| {
        let master = PlanchetMasterSecret::generate();
        Planchet::new(&master, Arc::clone(denom), &ExchangeWithdrawValues::Rsa)
    };
    (0..count).map(planchet).collect()
}

pub(super) fn batch_withdraw(planchets: &[Planchet], reserve: &EddsaPrivateKey) -> BatchWithdrawRequest {
    BatchWithdrawRequest { planchets: planchets.iter().map(|planchet| planchet.request(reserve)).collect() }
}
