//! The cast: our key for every recorded key, our text for every recorded text that depends on a key.

use std::collections::{HashMap, HashSet};

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use serde_json::Value;

use crate::replay::recording::Scenario;

/// Members whose value is the public key of somebody who signs.
const KEYS: [&str; 6] = ["reserve_pub", "coin_pub", "purse_pub", "merge_pub", "merchant_pub", "old_coin_pub"];
/// Members of answers whose value depends on our keys, so that it is read from our answer.
const LEARNT: [&str; 2] = ["h_payto", "wtid"];

/// The mapping from recorded values to ours.
#[derive(Default)]
pub(super) struct Cast {
    texts: HashMap<String, String>,
    /// The values of `texts`.
    ours: HashSet<String>,
    secrets: HashMap<EddsaPublicKey, EddsaPrivateKey>,
    /// Numbers of KYC requirements.
    rows: HashMap<u64, u64>,
    /// The state and cookie with which a browser comes back from the provider, by the hash that the recorded one used.
    logins: HashMap<String, (String, String)>,
}

impl Cast {
    /// Gives every signer of a scenario a key of ours, except coins, which [`Cast::coin`] adds.
    pub(super) fn of(scenario: &Scenario, is_coin: impl Fn(&str) -> bool) -> Self {
        let mut this = Self::default();
        let mut found = Vec::new();
        for line in &scenario.lines {
            for body in [&line.request.body, &line.response.body] {
                visit(body, &mut |name, text| {
                    if KEYS.contains(&name) {
                        found.push(text.to_owned());
                    }
                    found.extend(reserve_in(text).map(str::to_owned));
                });
            }
            if line.server == "exchange" {
                match line.request.segments().as_slice() {
                    ["reserves" | "purses" | "coins", key, ..] => found.push((*key).to_owned()),
                    ["management", "auditors", key, ..] | ["auditors", key, ..] => {
                        found.push((*key).to_owned());
                    }
                    ["deposits", _, merchant, _, coin] => {
                        found.extend([(*merchant).to_owned(), (*coin).to_owned()]);
                    }
                    _ => {}
                }
            }
        }
        for text in found {
            let Ok(recorded) = text.parse::<EddsaPublicKey>() else { continue };
            // Some requests spell a key in lower case.
            let usual = recorded.to_string();
            if is_coin(&usual) || this.texts.contains_key(&text) {
                continue;
            }
            match this.get(&usual).map(str::to_owned) {
                Some(ours) => this.add(&text, &ours.to_lowercase()),
                None => this.signer(&usual, EddsaPrivateKey::generate()),
            }
        }
        this
    }

    pub(super) fn add(&mut self, recorded: &str, ours: &str) {
        self.texts.insert(recorded.to_owned(), ours.to_owned());
        self.ours.insert(ours.to_owned());
    }

    /// Returns whether a text of ours stands for a recorded one.
    pub(super) fn is_ours(&self, text: &str) -> bool {
        self.ours.contains(text)
    }

    /// Adds a key that may sign.
    pub(super) fn signer(&mut self, recorded: &str, key: EddsaPrivateKey) {
        self.add(recorded, &key.public_key().to_string());
        self.secrets.insert(key.public_key(), key);
    }

    pub(super) fn secret(&self, key: &EddsaPublicKey) -> Option<&EddsaPrivateKey> {
        self.secrets.get(key)
    }

    pub(super) fn row(&self, recorded: u64) -> Option<u64> {
        self.rows.get(&recorded).copied()
    }

    pub(super) fn add_row(&mut self, recorded: u64, ours: u64) {
        self.rows.insert(recorded, ours);
    }

    pub(super) fn get(&self, recorded: &str) -> Option<&str> {
        self.texts.get(recorded).map(String::as_str)
    }

    /// Our text for a recorded one.
    pub(super) fn text(&self, recorded: &str) -> String {
        if let Some(ours) = self.get(recorded) {
            return ours.to_owned();
        }
        match reserve_in(recorded).and_then(|reserve| Some((reserve, self.get(reserve)?))) {
            Some((reserve, ours)) => recorded.replace(reserve, ours),
            None => recorded.to_owned(),
        }
    }

    /// Notes the login that stands for a recorded one.
    pub(super) fn add_login(&mut self, recorded: &str, state: &str, cookie: &str) {
        self.logins.insert(recorded.to_owned(), (state.to_owned(), cookie.to_owned()));
    }

    /// Our state and cookie for a recorded query.
    pub(super) fn login(&self, query: &str) -> Option<&(String, String)> {
        self.logins.get(query.strip_prefix("state=")?.split('&').next()?)
    }

    /// Our value for a recorded one.
    pub(super) fn value(&self, recorded: &Value) -> Value {
        match recorded {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), self.value(value))).collect()
            }
            other => other.clone(),
        }
    }

    /// Our path for a recorded one.
    pub(super) fn path(&self, recorded: &str) -> String {
        let (path, query) =
            recorded.split_once('?').map_or((recorded, None), |(path, query)| (path, Some(query)));
        let mut parts: Vec<String> = path.split('/').map(|part| self.text(part)).collect();
        if let ["", "kyc-check", row, ..] = path.split('/').collect::<Vec<_>>().as_slice()
            && let Some(row) = row.parse().ok().and_then(|row| self.row(row))
        {
            parts[2] = row.to_string();
        }
        let mut ours = parts.join("/");
        if parts.get(1).is_some_and(|part| part == "kyc-proof")
            && let Some(query) = query
            && let Some((state, _)) = self.login(query)
        {
            let rest = query.split_once('&').map_or("", |(_, rest)| rest);
            return format!("{ours}?state={state}&{rest}");
        }
        if let Some(query) = query {
            let pair = |pair: &str| match pair.split_once('=') {
                Some((name, value)) => format!("{name}={}", self.text(value)),
                None => pair.to_owned(),
            };
            ours = format!("{ours}?{}", query.split('&').map(pair).collect::<Vec<_>>().join("&"));
        }
        ours
    }

    /// Takes from our answer what depends on our keys.
    pub(super) fn learn(&mut self, recorded: &Value, ours: &Value) {
        match (recorded, ours) {
            (Value::Array(recorded), Value::Array(ours)) => {
                recorded.iter().zip(ours).for_each(|(recorded, ours)| self.learn(recorded, ours));
            }
            (Value::Object(recorded), Value::Object(ours)) => {
                for (name, value) in recorded {
                    match (value, ours.get(name)) {
                        (Value::String(value), Some(Value::String(ours)))
                            if LEARNT.contains(&name.as_str()) =>
                        {
                            if self.get(value).is_none() {
                                self.add(value, ours);
                            }
                        }
                        (value, Some(ours)) if name == "requirement_row" => {
                            if let (Some(value), Some(ours)) = (value.as_u64(), ours.as_u64()) {
                                self.rows.entry(value).or_insert(ours);
                            }
                        }
                        (value, Some(ours)) => self.learn(value, ours),
                        (_, None) => {}
                    }
                }
            }
            _ => {}
        }
    }
}

/// Calls `found` with every text and the name of its member.
fn visit(value: &Value, found: &mut impl FnMut(&str, &str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| visit(item, found)),
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(text) => found(name, text),
                    other => visit(other, found),
                }
            }
        }
        _ => {}
    }
}

/// The reserve in a payto URI of a wallet.
fn reserve_in(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("payto://taler-reserve")?;
    rest.rsplit('/').next()
}
