//! Coins, planchets and refreshes of ours that play recorded ones.

use std::collections::HashMap;

use batzen_crypto::{
    BlindedPlanchet, Cipher, CoinSecrets, CsNonce, DenomSignature, EddsaPrivateKey, EddsaPublicKey,
    ExchangeWithdrawValues, HashCode, PlanchetMasterSecret, RefreshMasterSecret, ShortHash,
};
use batzen_protocol::api::exchange::*;
use batzen_protocol::signatures::{SignedMessage, WalletReserveWithdraw};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::wallet::{Coin, Planchet, Refresh, age_for};
use crate::api::world::Denom;
use crate::replay::recording::Scenario;
use crate::replay::side::{Side, h_age_commitment};
use crate::replay::stage::Stage;

/// The age to which our age-restricted coins are restricted.
const AGE: u8 = 14;

/// A recorded coin that one of ours plays. Some recordings use one key for two coins.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Role {
    pub coin_pub: String,
    pub denom: HashCode,
    pub h_age: Option<ShortHash>,
}

/// A coin in a request.
pub(super) struct Mention {
    pub role: Role,
    /// The place of the denomination's signature, a JSON pointer.
    pub at: String,
    signature: DenomSignature,
}

fn member<T: DeserializeOwned>(body: &Value, name: &str) -> Option<T> {
    serde_json::from_value(body.get(name)?.clone()).ok()
}

/// Reads a coin whose members have these names.
fn mention(coin_pub: String, body: &Value, at: &str, [signature, h_age]: [&str; 2]) -> Option<Mention> {
    let age: Option<Vec<batzen_crypto::AgePublicKey>> = member(body, "age_commitment");
    let h_age = age.as_deref().map(h_age_commitment).or_else(|| member(body, h_age));
    // Zeros mean that the coin is not restricted.
    let h_age = h_age.filter(|h_age| *h_age != ShortHash::default());
    Some(Mention {
        role: Role { coin_pub, denom: member(body, "denom_pub_hash")?, h_age },
        at: format!("{at}/{signature}"),
        signature: member(body, signature)?,
    })
}

/// The coins in a request.
pub(super) fn mentions(segments: &[&str], body: &Value) -> Vec<Mention> {
    let listed = |name: &str| -> Vec<Mention> {
        let coins = body.get(name).and_then(Value::as_array).into_iter().flatten().enumerate();
        coins
            .filter_map(|(index, coin)| {
                let coin_pub = coin.get("coin_pub")?.as_str()?.to_owned();
                mention(coin_pub, coin, &format!("/{name}/{index}"), ["ub_sig", "h_age_commitment"])
            })
            .collect()
    };
    let single =
        |coin: &str, names: [&str; 2]| mention(coin.to_owned(), body, "", names).into_iter().collect();
    match segments {
        ["coins", coin, "deposit"] => single(coin, ["ub_sig", "h_age_commitment"]),
        ["coins", coin, "melt"] => single(coin, ["denom_sig", "age_commitment_hash"]),
        ["coins", coin, "recoup" | "recoup-refresh"] => single(coin, ["denom_sig", "h_age_commitment"]),
        ["batch-deposit"] => listed("coins"),
        ["purses", _, "create" | "deposit"] => listed("deposits"),
        _ => Vec::new(),
    }
}

impl Mention {
    /// Returns whether the denomination has signed the coin.
    pub(super) fn is_valid(&self, recorded: &Side) -> bool {
        let Role { coin_pub, denom, h_age } = &self.role;
        let Ok(coin_pub) = coin_pub.parse::<EddsaPublicKey>() else { return false };
        recorded.denominations.get(denom).is_some_and(|info| {
            let hash = batzen_crypto::denom::h_coin_pub(&coin_pub, h_age.as_ref());
            info.denom_pub.verify(&hash, &self.signature)
        })
    }
}

/// All valid coins of a scenario, in the order of their uses.
pub(super) fn known_coins(scenario: &Scenario, recorded: &Side) -> Vec<Role> {
    let mut coins = Vec::new();
    for line in scenario.requests() {
        for mention in mentions(&line.request.segments(), &line.request.body) {
            if mention.is_valid(recorded) && !coins.contains(&mention.role) {
                coins.push(mention.role);
            }
        }
    }
    coins
}

/// The coins whose recoup tells which planchet they were made of: the hashes of planchets, and the coins.
pub(super) fn origins(scenario: &Scenario, recorded: &Side) -> HashMap<HashCode, Role> {
    let mut origins = HashMap::new();
    for line in scenario.requests() {
        let segments = line.request.segments();
        let ["coins", coin, "recoup" | "recoup-refresh"] = segments.as_slice() else { continue };
        let valid =
            mentions(&segments, &line.request.body).pop().filter(|mention| mention.is_valid(recorded));
        let Ok(request) = serde_json::from_value::<RecoupRequest>(line.request.body.clone()) else {
            continue;
        };
        if let (Some(mention), Ok(coin_pub), Some(info)) =
            (valid, coin.parse(), recorded.denominations.get(&request.denom_pub_hash))
        {
            let planchet = batzen_crypto::denom::recoup_h_coin_ev(
                &info.denom_pub,
                &request.ewv,
                request.cs_nonce.as_ref(),
                &coin_pub,
                &request.coin_blind_key_secret,
                request.h_age_commitment.as_ref(),
            );
            origins.insert(planchet.unwrap(), mention.role);
        }
    }
    origins
}

/// The planchets in a request, by their hashes.
pub(super) fn planchet_hashes(segments: &[&str], body: &Value) -> Vec<HashCode> {
    let hash = |planchet: &Value, h_denom_pub: &Value| -> Option<HashCode> {
        let planchet: BlindedPlanchet = serde_json::from_value(planchet.clone()).ok()?;
        Some(planchet.hash(&h_denom_pub.as_str()?.parse().ok()?))
    };
    let withdrawn = |body: &Value| hash(&body["coin_ev"], &body["denom_pub_hash"]);
    let list = |name: &str| body[name].as_array().cloned().unwrap_or_default();
    match segments {
        ["reserves", _, "withdraw"] => withdrawn(body).into_iter().collect(),
        ["reserves", _, "batch-withdraw"] => list("planchets").iter().filter_map(withdrawn).collect(),
        ["refreshes", _, "reveal"] => {
            let (planchets, denoms) = (list("coin_evs"), list("new_denoms_h"));
            planchets.iter().zip(&denoms).filter_map(|(planchet, denom)| hash(planchet, denom)).collect()
        }
        _ => Vec::new(),
    }
}

/// A refresh of ours, and the index that our exchange chose.
pub(super) struct Refreshing {
    pub refresh: Refresh,
    pub noreveal_index: Option<u32>,
}

#[derive(Default)]
pub(super) struct Purse {
    pub coins: HashMap<Role, Coin>,
    /// By the hash of the recorded planchet.
    pub planchets: HashMap<HashCode, Planchet>,
    /// By the recorded refresh commitment.
    pub refreshes: HashMap<String, Refreshing>,
    secrets: HashMap<String, PlanchetMasterSecret>,
    refresh_secrets: HashMap<String, RefreshMasterSecret>,
}

impl Purse {
    /// The secret of ours in place of a recorded nonce.
    pub(super) fn secret(&mut self, nonce: &str) -> PlanchetMasterSecret {
        self.secrets.entry(nonce.to_owned()).or_insert_with(PlanchetMasterSecret::generate).clone()
    }

    /// The refresh master secret of ours in place of a recorded one.
    pub(super) fn refresh_secret(&mut self, recorded: &str) -> RefreshMasterSecret {
        self.refresh_secrets.entry(recorded.to_owned()).or_insert_with(RefreshMasterSecret::generate).clone()
    }
}

impl Stage {
    /// Posts a request of our own that must be accepted.
    async fn accepted<T: DeserializeOwned>(&self, path: &str, body: &impl serde::Serialize) -> T {
        let reply = self.client.post_json(self.url(path), body).await.unwrap();
        assert_eq!(reply.status, 200, "{path}: {}", String::from_utf8_lossy(&reply.body));
        reply.json().unwrap()
    }

    async fn withdraw_values(
        &self,
        denom: &Denom,
        secret: &PlanchetMasterSecret,
    ) -> (ExchangeWithdrawValues, Option<CsNonce>) {
        if denom.terms.denom_pub.cipher() == Cipher::Rsa {
            return (ExchangeWithdrawValues::Rsa, None);
        }
        let nonce = secret.cs_nonce();
        let request = CsrWithdrawRequest { nonce, denom_pub_hash: denom.h };
        let answer: WithdrawValues = self.accepted("/csr-withdraw", &request).await;
        (answer.ewv, Some(nonce))
    }

    pub(crate) async fn planchet(
        &self,
        denom: &Denom,
        secret: &PlanchetMasterSecret,
        is_restricted: bool,
    ) -> Planchet {
        let (values, nonce) = self.withdraw_values(denom, secret).await;
        let age = if is_restricted { age_for(denom, AGE) } else { None };
        Planchet::prepare(denom, CoinSecrets::from_master(secret, &values), values, nonce, age)
    }

    /// A coin from a reserve that is no part of the recording, with this key if there is one.
    pub(crate) async fn mint(
        &mut self,
        denom: &Denom,
        key: Option<EddsaPrivateKey>,
        is_restricted: bool,
    ) -> Coin {
        let reserve = self.float(denom.cost()).await;
        let secret = PlanchetMasterSecret::generate();
        let mut planchet = self.planchet(denom, &secret, is_restricted).await;
        if let Some(coin_priv) = key {
            let secrets = CoinSecrets { coin_priv, ..planchet.secrets };
            let Planchet { values, nonce, age, .. } = planchet;
            planchet = Planchet::prepare(denom, secrets, values, nonce, age);
        }
        let message = WalletReserveWithdraw {
            amount_with_fee: denom.cost().of(denom.terms.value.currency),
            h_denom_pub: denom.h,
            h_coin_envelope: planchet.h_coin_ev(),
        };
        let request = WithdrawRequest {
            reserve_sig: message.sign(&reserve),
            denom_pub_hash: denom.h,
            coin_ev: planchet.blinded.clone(),
        };
        let path = format!("/reserves/{}/withdraw", reserve.public_key());
        let answer: BlindSignature = self.accepted(&path, &request).await;
        planchet.finish(&answer.ev_sig)
    }

    /// The exchange's first messages of a refresh.
    pub(crate) async fn melt_values(
        &self,
        denoms: &[Denom],
        rms: &RefreshMasterSecret,
    ) -> Vec<ExchangeWithdrawValues> {
        let mut values = vec![ExchangeWithdrawValues::Rsa; denoms.len()];
        let nks: Vec<CsrMeltCoin> = (0..)
            .zip(denoms)
            .filter(|(_, denom)| denom.terms.denom_pub.cipher() == Cipher::Cs)
            .map(|(coin_offset, denom)| CsrMeltCoin { coin_offset, denom_pub_hash: denom.h })
            .collect();
        if !nks.is_empty() {
            let places: Vec<usize> = nks.iter().map(|coin| coin.coin_offset as usize).collect();
            let request = CsrMeltRequest { rms: rms.clone(), nks };
            let answer: CsrMeltResponse = self.accepted("/csr-melt", &request).await;
            for (place, ewv) in places.into_iter().zip(answer.ewvs) {
                values[place] = ewv.ewv;
            }
        }
        values
    }
}

/// Returns whether a recorded planchet fits a denomination of ours.
pub(super) fn fits(planchet: &BlindedPlanchet, denom: &Denom) -> bool {
    matches!(
        (planchet, denom.terms.denom_pub.cipher()),
        (BlindedPlanchet::Rsa { .. }, Cipher::Rsa) | (BlindedPlanchet::Cs { .. }, Cipher::Cs)
    )
}
