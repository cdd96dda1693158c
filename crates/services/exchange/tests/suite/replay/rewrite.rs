//! Makes our request from a recorded one: the same structure, with our keys, coins and signatures. What was
//! wrong on purpose stays wrong: an invalid signature is sent as it was recorded, an unknown key is unknown
//! here too.

use batzen_crypto::{BlindedPlanchet, CsNonce, HashCode};
use batzen_protocol::Amount;
use serde_json::Value;

use crate::api::wallet::Refresh;
use crate::replay::coins::{self, Refreshing, Role, mentions};
use crate::replay::player::Player;
use crate::replay::recording::Line;

/// A request of ours.
pub(super) struct Ours {
    pub path: String,
    pub body: Value,
}

fn text_of<'a>(body: &'a Value, name: &str) -> Option<&'a str> {
    body.get(name)?.as_str()
}

fn split(path: &str) -> Vec<&str> {
    path.split('?').next().unwrap_or_default().split('/').filter(|part| !part.is_empty()).collect()
}

impl Player {
    pub(super) async fn rewrite(&mut self, line: &Line) -> Ours {
        let segments = line.request.segments();
        let recorded = &line.request.body;
        for role in self.coins_in(&segments, recorded) {
            self.mint(role).await;
        }
        self.nonces(&segments, recorded);
        self.refreshing(&segments, recorded).await;
        let mut ours = Ours { path: self.cast.path(&line.request.path), body: self.cast.value(recorded) };
        self.planchets(&segments, recorded, &mut ours.body).await;
        for mention in mentions(&segments, recorded) {
            if mention.is_valid(&self.recorded)
                && let Some(coin) = self.purse.coins.get(&mention.role)
            {
                *ours.body.pointer_mut(&mention.at).expect("a coin's signature") =
                    serde_json::to_value(&coin.denom_sig).unwrap();
            }
        }
        self.recoup(&segments, recorded, &mut ours.body);
        self.reveal(&segments, line, &mut ours.body);
        self.sign(line, &mut ours);
        ours
    }

    /// The recorded coins that a request names, if the scenario uses them.
    fn coins_in(&self, segments: &[&str], body: &Value) -> Vec<Role> {
        let mentions = mentions(segments, body);
        let mut found: Vec<Role> = mentions.iter().map(|mention| mention.role.clone()).collect();
        found.retain(|role| self.known.contains(role) && !self.purse.coins.contains_key(role));
        // Every coin needs a key, also where it is named alone or is not valid.
        let in_path = match segments {
            ["coins", coin, ..] | ["deposits", _, _, _, coin] => Some((*coin).to_owned()),
            _ => None,
        };
        for coin_pub in in_path.into_iter().chain(mentions.into_iter().map(|mention| mention.role.coin_pub)) {
            if self.cast.get(&coin_pub).is_none() && found.iter().all(|role| role.coin_pub != coin_pub) {
                found.extend(self.known.iter().find(|role| role.coin_pub == coin_pub).cloned());
            }
        }
        found
    }

    async fn mint(&mut self, role: Role) {
        let Some(denom) = self.denoms.get(&role.denom.to_string()).cloned() else { return };
        let twin = self.purse.coins.iter().find(|(other, _)| other.coin_pub == role.coin_pub);
        let key = twin.map(|(_, coin)| coin.secrets.coin_priv.clone());
        let coin = self.stage.mint(&denom, key, role.h_age.is_some()).await;
        self.play_coin(role, coin);
    }

    /// Secrets of ours for recorded nonces.
    fn nonces(&mut self, segments: &[&str], body: &Value) {
        match segments {
            ["csr-withdraw"] => {
                if let Some(nonce) = text_of(body, "nonce").filter(|nonce| nonce.parse::<CsNonce>().is_ok()) {
                    let ours = self.purse.secret(nonce).cs_nonce();
                    self.cast.add(nonce, &ours.to_string());
                }
            }
            ["csr-melt"] | ["coins", _, "melt"] | ["refreshes", _, "reveal"] => {
                if let Some(rms) = text_of(body, "rms") {
                    let ours = serde_json::to_value(self.purse.refresh_secret(rms)).unwrap();
                    self.cast.add(rms, ours.as_str().expect("base 32"));
                }
            }
            _ => {}
        }
    }

    /// Prepares the refresh that a recorded melt commits to, if it is revealed later. Otherwise nobody can
    /// check the commitment, and the recorded one is sent.
    async fn refreshing(&mut self, segments: &[&str], body: &Value) {
        let (["coins", _, "melt"], Some(rc)) = (segments, text_of(body, "rc")) else { return };
        if self.purse.refreshes.contains_key(rc) {
            return;
        }
        let Some(mention) = mentions(segments, body).pop() else { return };
        let (Some(denoms), Some(old)) = (self.reveals.get(rc), self.purse.coins.get(&mention.role)) else {
            return;
        };
        let denoms: Option<Vec<_>> = denoms.iter().map(|h| self.denoms.get(h).cloned()).collect();
        let amount = text_of(body, "value_with_fee").and_then(|amount| amount.parse::<Amount>().ok());
        let (Some(denoms), Some(amount)) = (denoms, amount) else { return };
        let old = old.clone();
        let rms = self.purse.refresh_secret(text_of(body, "rms").unwrap_or(rc));
        let values = self.stage.melt_values(&denoms, &rms).await;
        let refresh = Refresh::commit(&old, &denoms, values, rms, amount.money);
        self.cast.add(rc, &refresh.rc.to_string());
        self.purse.refreshes.insert(rc.to_owned(), Refreshing { refresh, noreveal_index: None });
    }

    /// Puts planchets of ours in the place of recorded ones.
    async fn planchets(&mut self, segments: &[&str], recorded: &Value, ours: &mut Value) {
        match segments {
            ["reserves", _, "withdraw"] => self.planchet(recorded, ours).await,
            ["reserves", _, "batch-withdraw"] => {
                let count = recorded.get("planchets").and_then(Value::as_array).map_or(0, Vec::len);
                for index in 0..count {
                    self.planchet(&recorded["planchets"][index], &mut ours["planchets"][index]).await;
                }
            }
            _ => {}
        }
    }

    async fn planchet(&mut self, recorded: &Value, ours: &mut Value) {
        let Some(denom) = text_of(recorded, "denom_pub_hash").and_then(|h| self.denoms.get(h)).cloned()
        else {
            return;
        };
        let Some(coin_ev) = recorded.get("coin_ev") else { return };
        let Ok(planchet) = serde_json::from_value::<BlindedPlanchet>(coin_ev.clone()) else { return };
        if !coins::fits(&planchet, &denom) {
            return;
        }
        let Ok(h_denom_pub) = recorded["denom_pub_hash"].as_str().unwrap_or_default().parse::<HashCode>()
        else {
            return;
        };
        let key = planchet.hash(&h_denom_pub);
        if !self.purse.planchets.contains_key(&key) {
            let secret = self.purse.secret(coin_ev["cs_nonce"].as_str().unwrap_or(&key.to_string()));
            let is_restricted = denom.terms.denom_pub.age_mask != 0;
            let planchet = self.stage.planchet(&denom, &secret, is_restricted).await;
            self.purse.planchets.insert(key, planchet);
        }
        ours["coin_ev"] = serde_json::to_value(&self.purse.planchets[&key].blinded).unwrap();
    }

    /// Tells how our coin was blinded, in place of a recorded coin.
    fn recoup(&self, segments: &[&str], recorded: &Value, ours: &mut Value) {
        let ["coins", _, "recoup" | "recoup-refresh"] = segments else { return };
        let Some(mention) = mentions(segments, recorded).pop() else { return };
        let is_known = self.origins.values().any(|role| *role == mention.role);
        let Some(coin) = self.purse.coins.get(&mention.role).filter(|_| is_known) else { return };
        let request = serde_json::to_value(coin.recoup()).unwrap();
        for name in ["ewv", "coin_blind_key_secret", "cs_nonce"] {
            if recorded.get(name).is_some() {
                ours[name] = request[name].clone();
            }
        }
    }

    /// Reveals our refresh, with the members that were recorded.
    fn reveal(&self, segments: &[&str], line: &Line, ours: &mut Value) {
        let ["refreshes", rc, "reveal"] = segments else { return };
        let Some(Refreshing { refresh, noreveal_index: Some(index) }) = self.purse.refreshes.get(*rc) else {
            return;
        };
        if !line.is_ok() {
            return;
        }
        let mut body = serde_json::to_value(refresh.reveal(*index)).unwrap();
        let recorded = line.request.body.as_object().expect("it was accepted");
        let members = body.as_object_mut().expect("a struct");
        members.retain(|name, _| recorded.contains_key(name));
        assert_eq!(members.len(), recorded.len(), "members of a reveal");
        *ours = body;
    }

    /// Signs what was validly signed in the recording.
    fn sign(&self, line: &Line, ours: &mut Ours) {
        let recorded =
            self.recorded.signatures(&line.request.path, &line.request.segments(), &line.request.body);
        let valid: Vec<&str> = recorded
            .iter()
            .filter(|signature| {
                let text = match signature.at.strip_prefix('?') {
                    Some(name) => line.request.argument(name),
                    None => line.request.body.pointer(&signature.at).and_then(Value::as_str),
                };
                text.is_some_and(|text| signature.is_valid(text))
            })
            .map(|signature| signature.at.as_str())
            .collect();
        for signature in self.ours.signatures(&ours.path, &split(&ours.path), &ours.body) {
            let Some(key) = self.cast.secret(&signature.signer) else { continue };
            if !valid.contains(&signature.at.as_str()) {
                continue;
            }
            let made = signature.sign(key).to_string();
            match signature.at.strip_prefix('?') {
                Some(name) => {
                    let recorded = line.request.argument(name).expect("it is valid");
                    ours.path = ours.path.replace(recorded, &made);
                }
                None => {
                    *ours.body.pointer_mut(&signature.at).expect("it was read") = Value::String(made);
                }
            }
        }
    }
}
