//! Denominations, shops and coins, and the requests about them. They are built from the primitives, so that
//! the proof does not depend on the wallet.

use std::sync::Arc;

use batzen_crypto::refresh::{
    FreshCoin, FreshDenom, KAPPA, RefreshCommitment, derive_candidate, transfer_priv_from_master_secret,
    transfer_secret,
};
use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, Cipher, CoinSecrets, DenomPublicKey, DenomSignature,
    EcdhePrivateKey, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues, HashCode,
    PlanchetMasterSecret, RefreshMasterSecret, ShortHash, UnblindState, WireSalt,
};
use batzen_http::client::Client;
use batzen_protocol::api::exchange::{
    BatchDepositCoin, BatchDepositRequest, CoinHistoryItem, DepositRequest, KeysResponse, MeltRequest,
    PurseCoin, RefundRequest, RevealRequest, WithdrawRequest,
};
use batzen_protocol::api::merchant::{ContractTerms, PayCoin};
use batzen_protocol::payto::{h_payto, h_wire};
use batzen_protocol::signatures::{
    MerchantRefund, MerchantTrackTransaction, SignedMessage, WalletCoinDeposit, WalletCoinLink,
    WalletCoinMelt, WalletPurseDeposit, WalletReserveWithdraw, Zeros,
};
use batzen_protocol::{Amount, Currency, Duration, Money, Timestamp, hash_text};

pub(crate) const CURRENCY: Currency = match Currency::new("KUDOS") {
    Ok(currency) => currency,
    Err(_) => panic!("a currency"),
};

pub(crate) fn money(text: &str) -> Money {
    text.parse().unwrap()
}

pub(crate) fn plus(one: Money, other: Money) -> Money {
    one.checked_add(other).unwrap()
}

pub(crate) fn minus(one: Money, other: Money) -> Money {
    one.checked_sub(other).unwrap()
}

pub(crate) fn now() -> Timestamp {
    let now = Timestamp::from_system_time(std::time::SystemTime::now());
    Timestamp::from_secs(now.as_micros() / 1_000_000)
}

/// A denomination on offer.
pub(crate) struct Denom {
    pub key: DenomPublicKey,
    pub hash: HashCode,
    pub value: Money,
    pub fee_withdraw: Money,
    pub fee_deposit: Money,
    pub fee_refresh: Money,
    pub fee_refund: Money,
}

impl Denom {
    pub(crate) fn is_cs(&self) -> bool {
        self.key.cipher() == Cipher::Cs
    }

    /// The amount that a coin takes from a reserve.
    pub(crate) fn cost(&self) -> Money {
        plus(self.value, self.fee_withdraw)
    }

    /// The denominations that the exchange offers now.
    pub(crate) async fn offered(client: &Client, base_url: &str) -> Vec<Arc<Self>> {
        let reply = client.get_json(format!("{base_url}keys")).await.unwrap();
        let keys: KeysResponse = reply.ok().unwrap();
        let money = |amount: &Amount| amount.money_in(CURRENCY).unwrap();
        let offers = keys.denoms.iter().filter(|denom| {
            denom.stamp_start <= now() && now() < denom.stamp_expire_withdraw && denom.denom_pub.age_mask == 0
        });
        let denoms: Vec<_> = offers
            .map(|denom| {
                Arc::new(Self {
                    key: denom.denom_pub.clone(),
                    hash: denom.denom_pub.h_denom_pub(),
                    value: money(&denom.value),
                    fee_withdraw: money(&denom.fee_withdraw),
                    fee_deposit: money(&denom.fee_deposit),
                    fee_refresh: money(&denom.fee_refresh),
                    fee_refund: money(&denom.fee_refund),
                })
            })
            .collect();
        assert!(denoms.iter().any(|denom| denom.is_cs()) && denoms.iter().any(|denom| !denom.is_cs()));
        assert!(denoms.iter().all(|denom| !denom.fee_deposit.is_zero() && !denom.fee_refund.is_zero()));
        denoms
    }
}

/// A merchant: a key pair, an account, a salt.
pub(crate) struct Shop {
    pub account: String,
    pub payto_uri: String,
    key: EddsaPrivateKey,
    pub key_pub: EddsaPublicKey,
    salt: WireSalt,
}

impl Shop {
    pub(crate) fn new(account: &str) -> Self {
        let key = EddsaPrivateKey::generate();
        Self {
            account: account.to_owned(),
            payto_uri: format!("payto://x-taler-bank/localhost/{account}?receiver-name={account}"),
            key_pub: key.public_key(),
            key,
            salt: WireSalt::from_bytes([7; 16]),
        }
    }

    pub(crate) fn h_payto(&self) -> ShortHash {
        h_payto(&self.payto_uri)
    }

    fn h_wire(&self) -> HashCode {
        h_wire(&self.payto_uri, &self.salt)
    }

    /// The account and the key that a deposit names.
    fn payee(&self) -> (HashCode, EddsaPublicKey) {
        (self.h_wire(), self.key_pub)
    }

    /// The path of the status of a deposit, below the base URL of the exchange.
    pub(crate) fn deposit_status(&self, coin_pub: EddsaPublicKey, contract: HashCode) -> String {
        let h_wire = self.h_wire();
        let message = MerchantTrackTransaction { h_contract_terms: contract, h_wire, coin_pub };
        let signature = message.sign(&self.key);
        format!("deposits/{h_wire}/{}/{contract}/{coin_pub}?merchant_sig={signature}", self.key_pub)
    }

    pub(crate) fn refund(
        &self,
        coin_pub: EddsaPublicKey,
        contract: HashCode,
        number: u64,
        amount: Money,
    ) -> RefundRequest {
        let refund_amount = amount.of(CURRENCY);
        let message =
            MerchantRefund { h_contract_terms: contract, coin_pub, rtransaction_id: number, refund_amount };
        RefundRequest {
            refund_amount,
            h_contract_terms: contract,
            merchant_pub: self.key_pub,
            rtransaction_id: number,
            merchant_sig: message.sign(&self.key),
        }
    }
}

/// A purchase: a contract's hash and its deadlines.
pub(crate) struct Contract {
    pub hash: HashCode,
    timestamp: Timestamp,
    refund_deadline: Timestamp,
    wire_deadline: Timestamp,
}

impl Contract {
    /// A contract to be paid at once.
    pub(crate) fn due() -> Self {
        let timestamp = now();
        Self {
            hash: HashCode::random(),
            timestamp,
            refund_deadline: Timestamp::ZERO,
            wire_deadline: timestamp,
        }
    }

    /// A contract that is paid after this time, during which the shop may refund it.
    pub(crate) fn refundable(time: Duration) -> Self {
        let later = now().saturating_add(time);
        Self { refund_deadline: later, wire_deadline: later, ..Self::due() }
    }
}

/// A coin of a customer.
pub(crate) struct Coin {
    pub denom: Arc<Denom>,
    key: EddsaPrivateKey,
    pub key_pub: EddsaPublicKey,
    sig: DenomSignature,
}

impl Coin {
    fn deposit_sig(
        &self,
        (h_wire, merchant_pub): (HashCode, EddsaPublicKey),
        contract: &Contract,
        amount: Money,
    ) -> EddsaSignature {
        let message = WalletCoinDeposit {
            h_contract_terms: contract.hash,
            h_age_commitment: ShortHash::ZERO,
            h_policy: HashCode::ZERO,
            h_wire,
            h_denom_pub: self.denom.hash,
            wallet_timestamp: contract.timestamp,
            refund_deadline: contract.refund_deadline,
            amount_with_fee: amount.of(CURRENCY),
            deposit_fee: self.denom.fee_deposit.of(CURRENCY),
            merchant_pub,
        };
        message.sign(&self.key)
    }

    pub(crate) fn deposit(&self, shop: &Shop, contract: &Contract, amount: Money) -> DepositRequest {
        DepositRequest {
            merchant_payto_uri: shop.payto_uri.clone(),
            wire_salt: shop.salt,
            contribution: amount.of(CURRENCY),
            denom_pub_hash: self.denom.hash,
            ub_sig: self.sig.clone(),
            merchant_pub: shop.key_pub,
            h_contract_terms: contract.hash,
            h_age_commitment: None,
            coin_sig: self.deposit_sig(shop.payee(), contract, amount),
            timestamp: contract.timestamp,
            refund_deadline: Some(contract.refund_deadline).filter(|deadline| *deadline != Timestamp::ZERO),
            wire_transfer_deadline: contract.wire_deadline,
            policy: None,
        }
    }

    /// The coin's payment at a merchant backend.
    pub(crate) fn pay(
        &self,
        terms: &ContractTerms,
        contract: HashCode,
        amount: Money,
        exchange_url: &str,
    ) -> PayCoin {
        let contract = Contract {
            hash: contract,
            timestamp: terms.timestamp,
            refund_deadline: terms.refund_deadline,
            wire_deadline: terms.refund_deadline,
        };
        PayCoin {
            coin_pub: self.key_pub,
            coin_sig: self.deposit_sig((terms.h_wire, terms.merchant_pub), &contract, amount),
            ub_sig: self.sig.clone(),
            h_denom: self.denom.hash,
            contribution: amount.of(CURRENCY),
            exchange_url: exchange_url.to_owned(),
            minimum_age_sig: None,
            age_commitment: None,
            h_age_commitment: None,
        }
    }

    /// The coin's payment into a purse.
    pub(crate) fn purse_deposit(
        &self,
        purse_pub: EddsaPublicKey,
        amount: Money,
        base_url: &str,
    ) -> PurseCoin {
        let message = WalletPurseDeposit {
            coin_amount: amount.of(CURRENCY),
            h_denom_pub: self.denom.hash,
            h_age_commitment: ShortHash::ZERO,
            purse_pub,
            h_exchange_base_url: hash_text(base_url),
        };
        PurseCoin {
            amount: amount.of(CURRENCY),
            denom_pub_hash: self.denom.hash,
            ub_sig: self.sig.clone(),
            coin_pub: self.key_pub,
            coin_sig: message.sign(&self.key),
            age_commitment: None,
            attest: None,
        }
    }

    pub(crate) fn batch_deposit(
        coins: &[(Arc<Self>, Money)],
        shop: &Shop,
        contract: &Contract,
    ) -> BatchDepositRequest {
        let part = |(coin, amount): &(Arc<Self>, Money)| BatchDepositCoin {
            contribution: amount.of(CURRENCY),
            denom_pub_hash: coin.denom.hash,
            ub_sig: coin.sig.clone(),
            coin_pub: coin.key_pub,
            h_age_commitment: None,
            coin_sig: coin.deposit_sig(shop.payee(), contract, *amount),
        };
        BatchDepositRequest {
            merchant_payto_uri: shop.payto_uri.clone(),
            wire_salt: shop.salt,
            merchant_pub: shop.key_pub,
            h_contract_terms: contract.hash,
            coins: coins.iter().map(part).collect(),
            timestamp: contract.timestamp,
            refund_deadline: Some(contract.refund_deadline).filter(|deadline| *deadline != Timestamp::ZERO),
            wire_transfer_deadline: contract.wire_deadline,
            policy: None,
        }
    }

    /// The amount that a history leaves on the coin, provided that the right party has signed every entry.
    pub(crate) fn proven_rest(&self, history: &[CoinHistoryItem]) -> Result<Money, String> {
        let (mut debits, mut credits) = (Money::ZERO, self.denom.value);
        for item in history {
            let (sum, amount, is_signed) = match item {
                CoinHistoryItem::Deposit(item) => {
                    let message = WalletCoinDeposit {
                        h_contract_terms: item.h_contract_terms,
                        h_age_commitment: item.h_age_commitment.unwrap_or(ShortHash::ZERO),
                        h_policy: item.h_policy.unwrap_or(HashCode::ZERO),
                        h_wire: item.h_wire,
                        h_denom_pub: self.denom.hash,
                        wallet_timestamp: item.timestamp,
                        refund_deadline: item.refund_deadline.unwrap_or(Timestamp::ZERO),
                        amount_with_fee: item.amount,
                        deposit_fee: item.deposit_fee,
                        merchant_pub: item.merchant_pub,
                    };
                    (&mut debits, item.amount, message.verify(&self.key_pub, &item.coin_sig))
                }
                CoinHistoryItem::Melt(item) => {
                    let message = WalletCoinMelt {
                        refresh_commitment: item.rc,
                        h_denom_pub: self.denom.hash,
                        h_age_commitment: item.h_age_commitment.unwrap_or(ShortHash::ZERO),
                        amount_with_fee: item.amount,
                        melt_fee: item.melt_fee,
                    };
                    (&mut debits, item.amount, message.verify(&self.key_pub, &item.coin_sig))
                }
                CoinHistoryItem::PurseDeposit(item) if !item.refunded => {
                    let message = WalletPurseDeposit {
                        coin_amount: item.amount,
                        h_denom_pub: self.denom.hash,
                        h_age_commitment: item.h_age_commitment.unwrap_or(ShortHash::ZERO),
                        purse_pub: item.purse_pub,
                        h_exchange_base_url: hash_text(&item.exchange_base_url),
                    };
                    (&mut debits, item.amount, message.verify(&self.key_pub, &item.coin_sig))
                }
                CoinHistoryItem::Refund(item) => {
                    let message = MerchantRefund {
                        h_contract_terms: item.h_contract_terms,
                        coin_pub: self.key_pub,
                        rtransaction_id: item.rtransaction_id,
                        refund_amount: item.amount.checked_add(&item.refund_fee).unwrap(),
                    };
                    (&mut credits, item.amount, message.verify(&item.merchant_pub, &item.merchant_sig))
                }
                other => return Err(format!("nobody did this: {other:?}")),
            };
            if !is_signed {
                return Err(format!("not signed: {item:?}"));
            }
            let amount = amount.money_in(CURRENCY).map_err(|error| error.to_string())?;
            *sum = plus(*sum, amount);
        }
        credits.checked_sub(debits).map_err(|_| "more was taken from the coin than it was worth".to_owned())
    }
}

/// A coin to be withdrawn.
pub(crate) struct Planchet {
    pub denom: Arc<Denom>,
    secrets: CoinSecrets,
    blinded: BlindedPlanchet,
    unblind: UnblindState,
    pub h_coin_ev: HashCode,
}

impl Planchet {
    pub(crate) fn new(
        master: &PlanchetMasterSecret,
        denom: Arc<Denom>,
        values: &ExchangeWithdrawValues,
    ) -> Self {
        let secrets = CoinSecrets::from_master(master, values);
        let nonce = denom.is_cs().then(|| master.cs_nonce());
        let (blinded, unblind) = secrets.prepare(&denom.key, values, nonce.as_ref(), None).unwrap();
        Self { h_coin_ev: blinded.hash(&denom.hash), denom, secrets, blinded, unblind }
    }

    pub(crate) fn request(&self, reserve: &EddsaPrivateKey) -> WithdrawRequest {
        let message = WalletReserveWithdraw {
            amount_with_fee: self.denom.cost().of(CURRENCY),
            h_denom_pub: self.denom.hash,
            h_coin_envelope: self.h_coin_ev,
        };
        WithdrawRequest {
            reserve_sig: message.sign(reserve),
            denom_pub_hash: self.denom.hash,
            coin_ev: self.blinded.clone(),
        }
    }

    /// Also verifies the exchange's signature.
    pub(crate) fn finish(self, ev_sig: &BlindedDenomSignature) -> Coin {
        finish(self.denom, self.secrets.coin_priv, &self.unblind, ev_sig)
    }
}

fn finish(
    denom: Arc<Denom>,
    key: EddsaPrivateKey,
    unblind: &UnblindState,
    ev_sig: &BlindedDenomSignature,
) -> Coin {
    let sig = unblind.unblind(ev_sig).unwrap();
    Coin { denom, key_pub: key.public_key(), key, sig }
}

/// A refresh in progress.
pub(crate) struct Refresh {
    old: Arc<Coin>,
    amount: Money,
    secret: RefreshMasterSecret,
    denoms: Vec<Arc<Denom>>,
    transfer_privs: [EcdhePrivateKey; KAPPA],
    candidates: [Vec<FreshCoin>; KAPPA],
    pub rc: HashCode,
}

impl Refresh {
    pub(crate) fn new(
        old: Arc<Coin>,
        amount: Money,
        secret: RefreshMasterSecret,
        denoms: Vec<Arc<Denom>>,
        values: &[ExchangeWithdrawValues],
    ) -> Self {
        let fresh: Vec<FreshDenom<'_>> = denoms
            .iter()
            .zip(values)
            .map(|(denom, values)| FreshDenom { denom: &denom.key, values: *values })
            .collect();
        let rms = denoms.iter().any(|denom| denom.is_cs()).then_some(&secret);
        let transfer_privs = [0, 1, 2].map(|k| transfer_priv_from_master_secret(&secret, &old.key, k));
        let candidates = transfer_privs.each_ref().map(|transfer_priv| {
            let transfer = transfer_secret(transfer_priv, &old.key_pub).unwrap();
            derive_candidate(&transfer, &fresh, rms, None).unwrap()
        });
        let planchets = candidates
            .each_ref()
            .map(|coins| coins.iter().map(|coin| coin.planchet.clone()).collect::<Vec<BlindedPlanchet>>());
        let h_denom_pubs: Vec<HashCode> = denoms.iter().map(|denom| denom.hash).collect();
        let commitment = RefreshCommitment {
            rms,
            transfer_pubs: &transfer_privs.each_ref().map(EcdhePrivateKey::public_key),
            h_denom_pubs: &h_denom_pubs,
            old_coin_pub: &old.key_pub,
            amount_with_fee: &amount.of(CURRENCY).to_nbo(),
            planchets: planchets.each_ref().map(Vec::as_slice),
        };
        let rc = commitment.hash().unwrap();
        Self { old, amount, denoms, transfer_privs, candidates, rc, secret }
    }

    fn rms(&self) -> Option<RefreshMasterSecret> {
        self.denoms.iter().any(|denom| denom.is_cs()).then(|| self.secret.clone())
    }

    pub(crate) fn melt(&self) -> MeltRequest {
        let value_with_fee = self.amount.of(CURRENCY);
        let message = WalletCoinMelt {
            refresh_commitment: self.rc,
            h_denom_pub: self.old.denom.hash,
            h_age_commitment: ShortHash::ZERO,
            amount_with_fee: value_with_fee,
            melt_fee: self.old.denom.fee_refresh.of(CURRENCY),
        };
        MeltRequest {
            denom_sig: self.old.sig.clone(),
            denom_pub_hash: self.old.denom.hash,
            age_commitment_hash: None,
            confirm_sig: message.sign(&self.old.key),
            value_with_fee,
            rc: self.rc,
            rms: self.rms(),
            coin_pub: None,
        }
    }

    pub(crate) fn reveal(&self, noreveal_index: usize) -> RevealRequest {
        let transfer_pub = self.transfer_privs[noreveal_index].public_key();
        let chosen = &self.candidates[noreveal_index];
        let link = |(coin, denom): (&FreshCoin, &Arc<Denom>)| {
            let message = WalletCoinLink {
                h_denom_pub: denom.hash,
                transfer_pub,
                h_age_commitment: Zeros,
                h_coin_envelope: coin.planchet.hash(&denom.hash),
            };
            message.sign(&self.old.key)
        };
        RevealRequest {
            transfer_pub,
            transfer_privs: (0..KAPPA)
                .filter(|index| *index != noreveal_index)
                .map(|index| self.transfer_privs[index].clone())
                .collect(),
            link_sigs: chosen.iter().zip(&self.denoms).map(link).collect(),
            coin_evs: chosen.iter().map(|coin| coin.planchet.clone()).collect(),
            new_denoms_h: self.denoms.iter().map(|denom| denom.hash).collect(),
            old_age_commitment: None,
            rms: self.rms(),
        }
    }

    pub(crate) fn finish(self, noreveal_index: usize, ev_sigs: &[BlindedDenomSignature]) -> Vec<Coin> {
        assert_eq!(ev_sigs.len(), self.denoms.len());
        let chosen = self.candidates.into_iter().nth(noreveal_index).unwrap();
        chosen
            .into_iter()
            .zip(self.denoms)
            .zip(ev_sigs)
            .map(|((coin, denom), ev_sig)| finish(denom, coin.secrets.coin_priv, &coin.unblind, ev_sig))
            .collect()
    }
}
