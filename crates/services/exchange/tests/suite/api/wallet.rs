//! A small wallet: makes requests, finishes coins, and checks what the exchange signs.

use batzen_crypto::refresh::{
    FreshCoin, FreshDenom, KAPPA, RefreshCommitment, derive_candidate, link_transfer_secret, transfer_secret,
};
use batzen_crypto::{
    AgeCommitmentProof, AgeMask, BlindedDenomSignature, BlindedPlanchet, Cipher, CoinSecrets, CsNonce,
    DenomSignature, EcdhePrivateKey, EddsaPrivateKey, EddsaPublicKey, ExchangeWithdrawValues, HashCode,
    PlanchetMasterSecret, RefreshMasterSecret, ShortHash, UnblindState, WireSalt,
};
use batzen_protocol::api::exchange::{
    BatchDepositCoin, BatchDepositConfirmation, BatchDepositRequest, BatchWithdrawRequest, BlindSignature,
    BlindSignatures, CsrMeltCoin, CsrMeltRequest, CsrMeltResponse, CsrWithdrawRequest, DepositConfirmation,
    DepositRequest, LinkEntry, MeltConfirmation, MeltRequest, RecoupRequest, RefundConfirmation,
    RefundRequest, RevealRequest, WithdrawRequest, WithdrawValues,
};
use batzen_protocol::payto::h_wire;
use batzen_protocol::signatures::{
    ExchangeConfirmDeposit, ExchangeConfirmMelt, ExchangeConfirmRefund, MerchantRefund, SignedMessage,
    WalletCoinDeposit, WalletCoinLink, WalletCoinMelt, WalletCoinRecoup, WalletCoinRecoupRefresh,
    WalletReserveWithdraw, Zeros,
};
use batzen_protocol::{Amount, Duration, Money, Timestamp};

use crate::api::world::*;

pub(crate) const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);
pub(crate) const NO_POLICY: HashCode = HashCode::from_bytes([0; 64]);

/// A coin that is not signed yet.
#[derive(Clone, Debug)]
pub(crate) struct Planchet {
    pub denom: Denom,
    pub secrets: CoinSecrets,
    pub values: ExchangeWithdrawValues,
    pub nonce: Option<CsNonce>,
    pub age: Option<AgeCommitmentProof>,
    pub blinded: BlindedPlanchet,
    unblind: UnblindState,
}

#[derive(Clone, Debug)]
pub(crate) struct Coin {
    pub denom: Denom,
    pub secrets: CoinSecrets,
    pub coin_pub: EddsaPublicKey,
    pub denom_sig: DenomSignature,
    pub values: ExchangeWithdrawValues,
    pub nonce: Option<CsNonce>,
    pub age: Option<AgeCommitmentProof>,
}

/// An age commitment if this denomination requires one.
pub(crate) fn age_for(denom: &Denom, age: u8) -> Option<AgeCommitmentProof> {
    let mask = denom.terms.denom_pub.age_mask;
    (mask != 0).then(|| AgeCommitmentProof::generate(AgeMask::new(mask).unwrap(), age))
}

impl Planchet {
    /// Blinds a coin that has these secrets.
    pub(crate) fn prepare(
        denom: &Denom,
        secrets: CoinSecrets,
        values: ExchangeWithdrawValues,
        nonce: Option<CsNonce>,
        age: Option<AgeCommitmentProof>,
    ) -> Self {
        let h_age = age.as_ref().map(|age| age.commitment().hash());
        let (blinded, unblind) =
            secrets.prepare(&denom.terms.denom_pub, &values, nonce.as_ref(), h_age.as_ref()).unwrap();
        Self { denom: denom.clone(), secrets, values, nonce, age, blinded, unblind }
    }

    pub(crate) fn h_coin_ev(&self) -> HashCode {
        self.blinded.hash(&self.denom.h)
    }

    pub(crate) fn request(&self, reserve: &EddsaPrivateKey) -> WithdrawRequest {
        let message = WalletReserveWithdraw {
            amount_with_fee: self.denom.cost().of(currency()),
            h_denom_pub: self.denom.h,
            h_coin_envelope: self.h_coin_ev(),
        };
        WithdrawRequest {
            reserve_sig: message.sign(reserve),
            denom_pub_hash: self.denom.h,
            coin_ev: self.blinded.clone(),
        }
    }

    /// Unblinds the coin's signature and verifies it.
    pub(crate) fn finish(&self, ev_sig: &BlindedDenomSignature) -> Coin {
        Coin {
            denom: self.denom.clone(),
            coin_pub: self.secrets.coin_pub(),
            secrets: self.secrets.clone(),
            denom_sig: self.unblind.unblind(ev_sig).expect("the exchange signed the planchet"),
            values: self.values,
            nonce: self.nonce,
            age: self.age.clone(),
        }
    }
}

pub(crate) fn batch_of(planchets: &[Planchet], reserve: &EddsaPrivateKey) -> BatchWithdrawRequest {
    BatchWithdrawRequest { planchets: planchets.iter().map(|planchet| planchet.request(reserve)).collect() }
}

/// The path of an operation on a reserve.
pub(crate) fn at_reserve(reserve: &EddsaPrivateKey, operation: &str) -> String {
    format!("reserves/{}/{operation}", reserve.public_key())
}

impl Site {
    /// A planchet with fresh secrets, restricted to age 14 if the denomination is age-restricted.
    pub(crate) async fn planchet(&self, denom: &Denom) -> Planchet {
        self.planchet_of(denom, &PlanchetMasterSecret::generate(), age_for(denom, 14)).await
    }

    pub(crate) async fn planchet_of(
        &self,
        denom: &Denom,
        secret: &PlanchetMasterSecret,
        age: Option<AgeCommitmentProof>,
    ) -> Planchet {
        let (values, nonce) = self.values(denom, secret).await;
        Planchet::prepare(denom, CoinSecrets::from_master(secret, &values), values, nonce, age)
    }

    /// The exchange's first message for Clause Blind Schnorr.
    pub(crate) async fn values(
        &self,
        denom: &Denom,
        secret: &PlanchetMasterSecret,
    ) -> (ExchangeWithdrawValues, Option<CsNonce>) {
        if denom.terms.denom_pub.cipher() == Cipher::Rsa {
            return (ExchangeWithdrawValues::Rsa, None);
        }
        let nonce = secret.cs_nonce();
        let request = CsrWithdrawRequest { nonce, denom_pub_hash: denom.h };
        let answer: WithdrawValues = self.ok("csr-withdraw", &request).await;
        (answer.ewv, Some(nonce))
    }

    pub(crate) async fn withdraw(&self, reserve: &EddsaPrivateKey, planchet: &Planchet) -> Coin {
        let answer: BlindSignature =
            self.ok(&at_reserve(reserve, "withdraw"), &planchet.request(reserve)).await;
        planchet.finish(&answer.ev_sig)
    }

    /// A coin from a new reserve.
    pub(crate) async fn coin(&self, value: &str) -> Coin {
        self.coin_of(&self.denom(value)).await
    }

    pub(crate) async fn coin_of(&self, denom: &Denom) -> Coin {
        let reserve = self.reserve(&denom.cost().to_string()).await;
        self.withdraw(&reserve, &self.planchet(denom).await).await
    }
}

// --- Paying

impl Coin {
    pub(crate) fn path(&self, operation: &str) -> String {
        format!("coins/{}/{operation}", self.coin_pub)
    }

    pub(crate) fn h_age(&self) -> Option<ShortHash> {
        self.age.as_ref().map(|age| age.commitment().hash())
    }

    fn key(&self) -> &EddsaPrivateKey {
        &self.secrets.coin_priv
    }
}

/// A merchant with a contract.
#[derive(Clone, Debug)]
pub(crate) struct Contract {
    pub merchant: EddsaPrivateKey,
    pub payto_uri: String,
    pub salt: WireSalt,
    pub h_contract_terms: HashCode,
    pub timestamp: Timestamp,
    pub refund_deadline: Option<Timestamp>,
    pub wire_deadline: Timestamp,
}

impl Contract {
    /// Refundable for an hour, paid in two.
    pub(crate) fn new(site: &Site) -> Self {
        let now = site.now();
        Self {
            merchant: EddsaPrivateKey::generate(),
            payto_uri: MERCHANT.to_owned(),
            salt: WireSalt::random(),
            h_contract_terms: HashCode::random(),
            timestamp: now,
            refund_deadline: Some(now.saturating_add(Duration::from_secs(3_600))),
            wire_deadline: now.saturating_add(Duration::from_secs(7_200)),
        }
    }

    /// Another contract of the same merchant.
    pub(crate) fn next(&self) -> Self {
        Self { h_contract_terms: HashCode::random(), ..self.clone() }
    }

    pub(crate) fn h_wire(&self) -> HashCode {
        h_wire(&self.payto_uri, &self.salt)
    }

    pub(crate) fn coin(&self, coin: &Coin, contribution: &str) -> BatchDepositCoin {
        let message = WalletCoinDeposit {
            h_contract_terms: self.h_contract_terms,
            h_age_commitment: coin.h_age().unwrap_or(NO_AGE),
            h_policy: NO_POLICY,
            h_wire: self.h_wire(),
            h_denom_pub: coin.denom.h,
            wallet_timestamp: self.timestamp,
            refund_deadline: self.refund_deadline.unwrap_or(Timestamp::ZERO),
            amount_with_fee: amount(contribution),
            deposit_fee: coin.denom.terms.fee_deposit,
            merchant_pub: self.merchant.public_key(),
        };
        BatchDepositCoin {
            contribution: amount(contribution),
            denom_pub_hash: coin.denom.h,
            ub_sig: coin.denom_sig.clone(),
            coin_pub: coin.coin_pub,
            h_age_commitment: coin.h_age(),
            coin_sig: message.sign(coin.key()),
        }
    }

    pub(crate) fn deposit(&self, coin: &Coin, contribution: &str) -> DepositRequest {
        let coin = self.coin(coin, contribution);
        DepositRequest {
            merchant_payto_uri: self.payto_uri.clone(),
            wire_salt: self.salt,
            contribution: coin.contribution,
            denom_pub_hash: coin.denom_pub_hash,
            ub_sig: coin.ub_sig,
            merchant_pub: self.merchant.public_key(),
            h_contract_terms: self.h_contract_terms,
            h_age_commitment: coin.h_age_commitment,
            coin_sig: coin.coin_sig,
            timestamp: self.timestamp,
            refund_deadline: self.refund_deadline,
            wire_transfer_deadline: self.wire_deadline,
            policy: None,
        }
    }

    pub(crate) fn batch(&self, coins: &[(&Coin, &str)]) -> BatchDepositRequest {
        BatchDepositRequest {
            merchant_payto_uri: self.payto_uri.clone(),
            wire_salt: self.salt,
            merchant_pub: self.merchant.public_key(),
            h_contract_terms: self.h_contract_terms,
            coins: coins.iter().map(|(coin, contribution)| self.coin(coin, contribution)).collect(),
            timestamp: self.timestamp,
            refund_deadline: self.refund_deadline,
            wire_transfer_deadline: self.wire_deadline,
            policy: None,
        }
    }

    fn confirmation(
        &self,
        coin: &Coin,
        contribution: &str,
        exchange_timestamp: Timestamp,
    ) -> ExchangeConfirmDeposit {
        let fee = coin.denom.terms.fee_deposit.money();
        ExchangeConfirmDeposit {
            h_contract_terms: self.h_contract_terms,
            h_wire: self.h_wire(),
            h_policy: NO_POLICY,
            exchange_timestamp,
            wire_deadline: self.wire_deadline,
            refund_deadline: self.refund_deadline.unwrap_or(Timestamp::ZERO),
            amount_without_fee: m(contribution).checked_sub(fee).unwrap().of(currency()),
            coin_pub: coin.coin_pub,
            merchant_pub: self.merchant.public_key(),
        }
    }

    /// Checks a confirmation as the merchant does.
    pub(crate) fn confirmed(
        &self,
        site: &Site,
        coin: &Coin,
        contribution: &str,
        answer: &DepositConfirmation,
    ) {
        assert!(site.is_online_key(&answer.exchange_pub));
        let message = self.confirmation(coin, contribution, answer.exchange_timestamp);
        assert!(message.verify(&answer.exchange_pub, &answer.exchange_sig), "confirmation of a deposit");
    }

    pub(crate) fn batch_confirmed(
        &self,
        site: &Site,
        coins: &[(&Coin, &str)],
        answer: &BatchDepositConfirmation,
    ) {
        assert!(site.is_online_key(&answer.exchange_pub));
        assert_eq!(coins.len(), answer.exchange_sigs.len());
        for ((coin, contribution), signature) in coins.iter().zip(&answer.exchange_sigs) {
            let message = self.confirmation(coin, contribution, answer.exchange_timestamp);
            assert!(message.verify(&answer.exchange_pub, &signature.exchange_sig), "confirmation of a batch");
        }
    }

    pub(crate) fn refund(&self, coin: &Coin, refund: &str, rtransaction_id: u64) -> RefundRequest {
        let message = MerchantRefund {
            h_contract_terms: self.h_contract_terms,
            coin_pub: coin.coin_pub,
            rtransaction_id,
            refund_amount: amount(refund),
        };
        RefundRequest {
            refund_amount: amount(refund),
            h_contract_terms: self.h_contract_terms,
            merchant_pub: self.merchant.public_key(),
            rtransaction_id,
            merchant_sig: message.sign(&self.merchant),
        }
    }
}

impl Site {
    pub(crate) fn is_online_key(&self, exchange_pub: &EddsaPublicKey) -> bool {
        self.keys.signkeys.iter().any(|key| key.key == *exchange_pub)
    }

    /// Deposits, and checks the confirmation.
    pub(crate) async fn pay(
        &self,
        contract: &Contract,
        coin: &Coin,
        contribution: &str,
    ) -> DepositConfirmation {
        let answer = self.ok(&coin.path("deposit"), &contract.deposit(coin, contribution)).await;
        contract.confirmed(self, coin, contribution, &answer);
        answer
    }

    /// Refunds, and checks the confirmation.
    pub(crate) async fn refund(&self, contract: &Contract, coin: &Coin, refund: &str, rtransaction_id: u64) {
        let request = contract.refund(coin, refund, rtransaction_id);
        let answer: RefundConfirmation = self.ok(&coin.path("refund"), &request).await;
        assert!(self.is_online_key(&answer.exchange_pub));
        let message = ExchangeConfirmRefund {
            h_contract_terms: contract.h_contract_terms,
            coin_pub: coin.coin_pub,
            merchant_pub: contract.merchant.public_key(),
            rtransaction_id,
            refund_amount: amount(refund),
        };
        assert!(message.verify(&answer.exchange_pub, &answer.exchange_sig), "confirmation of a refund");
    }

    /// Asserts how much the coin can still pay, by spending exactly that.
    pub(crate) async fn is_left(&self, coin: &Coin, money: &str) {
        let contract = Contract::new(self);
        let more = m(money).checked_add(Money::UNIT).unwrap().max(coin.denom.terms.fee_deposit.money());
        if more <= coin.denom.terms.value.money() {
            let request = contract.deposit(coin, &more.to_string());
            self.refused(&coin.path("deposit"), &request, 409, 1012).await;
        }
        if m(money) >= coin.denom.terms.fee_deposit.money() {
            self.pay(&contract, coin, money).await;
        }
    }
}

// --- Refreshing

/// A refresh: three candidates and the commitment to them.
#[derive(Clone, Debug)]
pub(crate) struct Refresh {
    pub old: Coin,
    pub amount: Money,
    pub rms: RefreshMasterSecret,
    pub transfer_privs: Vec<EcdhePrivateKey>,
    pub denoms: Vec<Denom>,
    pub values: Vec<ExchangeWithdrawValues>,
    pub candidates: Vec<Vec<FreshCoin>>,
    pub rc: HashCode,
}

impl Refresh {
    pub(crate) fn has_cs(&self) -> bool {
        self.denoms.iter().any(|denom| denom.terms.denom_pub.cipher() == Cipher::Cs)
    }

    fn amount_with_fee(&self) -> Amount {
        self.amount.of(self.old.denom.terms.value.currency)
    }

    fn sent_rms(&self) -> Option<RefreshMasterSecret> {
        self.has_cs().then(|| self.rms.clone())
    }

    pub(crate) fn commit(
        old: &Coin,
        denoms: &[Denom],
        values: Vec<ExchangeWithdrawValues>,
        rms: RefreshMasterSecret,
        amount: Money,
    ) -> Self {
        let transfer_privs: Vec<_> = (0..KAPPA).map(|_| EcdhePrivateKey::generate()).collect();
        let fresh: Vec<FreshDenom<'_>> = denoms
            .iter()
            .zip(&values)
            .map(|(denom, values)| FreshDenom { denom: &denom.terms.denom_pub, values: *values })
            .collect();
        let candidates: Vec<_> = transfer_privs
            .iter()
            .map(|key| {
                let secret = transfer_secret(key, &old.coin_pub).unwrap();
                let age = old.age.as_ref().map(AgeCommitmentProof::commitment);
                derive_candidate(&secret, &fresh, Some(&rms), age).unwrap()
            })
            .collect();
        let denoms = denoms.to_vec();
        let rc = HashCode::from_bytes([0; 64]);
        let mut refresh =
            Self { old: old.clone(), amount, rms, transfer_privs, denoms, values, candidates, rc };
        refresh.rc = refresh.commitment();
        refresh
    }

    /// The commitment to the current candidates.
    pub(crate) fn commitment(&self) -> HashCode {
        let planchets: Vec<Vec<BlindedPlanchet>> = self
            .candidates
            .iter()
            .map(|coins| coins.iter().map(|coin| coin.planchet.clone()).collect())
            .collect();
        let h_denom_pubs: Vec<HashCode> = self.denoms.iter().map(|denom| denom.h).collect();
        let transfer_pubs: Vec<_> = self.transfer_privs.iter().map(EcdhePrivateKey::public_key).collect();
        RefreshCommitment {
            rms: Some(&self.rms),
            transfer_pubs: &transfer_pubs.try_into().unwrap(),
            h_denom_pubs: &h_denom_pubs,
            old_coin_pub: &self.old.coin_pub,
            amount_with_fee: &self.amount_with_fee().to_nbo(),
            planchets: [&planchets[0], &planchets[1], &planchets[2]],
        }
        .hash()
        .unwrap()
    }

    pub(crate) fn melt(&self) -> MeltRequest {
        let old = &self.old;
        let message = WalletCoinMelt {
            refresh_commitment: self.rc,
            h_denom_pub: old.denom.h,
            h_age_commitment: old.h_age().unwrap_or(NO_AGE),
            amount_with_fee: self.amount_with_fee(),
            melt_fee: old.denom.terms.fee_refresh,
        };
        MeltRequest {
            denom_sig: old.denom_sig.clone(),
            denom_pub_hash: old.denom.h,
            age_commitment_hash: old.h_age(),
            confirm_sig: message.sign(old.key()),
            value_with_fee: self.amount_with_fee(),
            rc: self.rc,
            rms: self.sent_rms(),
            coin_pub: Some(old.coin_pub),
        }
    }

    pub(crate) fn reveal_path(&self) -> String {
        format!("refreshes/{}/reveal", self.rc)
    }

    pub(crate) fn reveal(&self, noreveal_index: u32) -> RevealRequest {
        let secret = noreveal_index as usize;
        let transfer_pub = self.transfer_privs[secret].public_key();
        let coin_evs: Vec<_> = self.candidates[secret].iter().map(|coin| coin.planchet.clone()).collect();
        let link = |denom: &Denom, planchet: &BlindedPlanchet| {
            WalletCoinLink {
                h_denom_pub: denom.h,
                transfer_pub,
                h_age_commitment: Zeros,
                h_coin_envelope: planchet.hash(&denom.h),
            }
            .sign(self.old.key())
        };
        let revealed = self.transfer_privs.iter().enumerate().filter(|(index, _)| *index != secret);
        RevealRequest {
            transfer_pub,
            transfer_privs: revealed.map(|(_, key)| key.clone()).collect(),
            link_sigs: self
                .denoms
                .iter()
                .zip(&coin_evs)
                .map(|(denom, planchet)| link(denom, planchet))
                .collect(),
            coin_evs,
            new_denoms_h: self.denoms.iter().map(|denom| denom.h).collect(),
            old_age_commitment: self.old.age.as_ref().map(|age| age.commitment().keys().to_vec()),
            rms: self.sent_rms(),
        }
    }

    /// Unblinds the signatures of the fresh coins.
    pub(crate) fn finish(&self, noreveal_index: u32, answer: &BlindSignatures) -> Vec<Coin> {
        let secret = noreveal_index as usize;
        let age = self.old.age.as_ref().map(|age| {
            let secret = transfer_secret(&self.transfer_privs[secret], &self.old.coin_pub).unwrap();
            age.derive(secret.as_bytes()).unwrap()
        });
        assert_eq!(answer.ev_sigs.len(), self.denoms.len());
        self.candidates[secret]
            .iter()
            .zip(&answer.ev_sigs)
            .zip(self.denoms.iter().zip(&self.values))
            .zip(0..)
            .map(|(((fresh, signed), (denom, values)), index)| Coin {
                denom: denom.clone(),
                secrets: fresh.secrets.clone(),
                coin_pub: fresh.coin_pub,
                denom_sig: fresh.unblind.unblind(&signed.ev_sig).expect("the exchange signed the planchet"),
                values: *values,
                nonce: (denom.terms.denom_pub.cipher() == Cipher::Cs).then(|| self.rms.cs_nonce(index)),
                age: age.clone(),
            })
            .collect()
    }
}

impl Site {
    /// The exchange's first messages of a refresh.
    pub(crate) async fn melt_values(
        &self,
        denoms: &[Denom],
        rms: &RefreshMasterSecret,
    ) -> Vec<ExchangeWithdrawValues> {
        let mut values = vec![ExchangeWithdrawValues::Rsa; denoms.len()];
        let places: Vec<usize> =
            (0..denoms.len()).filter(|index| denoms[*index].terms.denom_pub.cipher() == Cipher::Cs).collect();
        if !places.is_empty() {
            let nks = places
                .iter()
                .map(|index| CsrMeltCoin {
                    coin_offset: u32::try_from(*index).unwrap(),
                    denom_pub_hash: denoms[*index].h,
                })
                .collect();
            let request = CsrMeltRequest { rms: rms.clone(), nks };
            let answer: CsrMeltResponse = self.ok("csr-melt", &request).await;
            assert_eq!(answer.ewvs.len(), places.len());
            for (place, ewv) in places.into_iter().zip(answer.ewvs) {
                values[place] = ewv.ewv;
            }
        }
        values
    }

    pub(crate) async fn plan_refresh(&self, old: &Coin, denoms: &[Denom], amount: &str) -> Refresh {
        self.plan_refresh_with(old, denoms, amount, RefreshMasterSecret::generate()).await
    }

    pub(crate) async fn plan_refresh_with(
        &self,
        old: &Coin,
        denoms: &[Denom],
        amount: &str,
        rms: RefreshMasterSecret,
    ) -> Refresh {
        let values = self.melt_values(denoms, &rms).await;
        Refresh::commit(old, denoms, values, rms, m(amount))
    }

    /// Melts, and checks the confirmation.
    pub(crate) async fn melt(&self, refresh: &Refresh) -> u32 {
        let answer: MeltConfirmation = self.ok(&refresh.old.path("melt"), &refresh.melt()).await;
        assert!(self.is_online_key(&answer.exchange_pub));
        let message =
            ExchangeConfirmMelt { refresh_commitment: refresh.rc, noreveal_index: answer.noreveal_index };
        assert!(message.verify(&answer.exchange_pub, &answer.exchange_sig), "confirmation of a melt");
        assert!(answer.noreveal_index < 3);
        answer.noreveal_index
    }

    pub(crate) async fn reveal(&self, refresh: &Refresh, noreveal_index: u32) -> Vec<Coin> {
        let answer = self.ok(&refresh.reveal_path(), &refresh.reveal(noreveal_index)).await;
        refresh.finish(noreveal_index, &answer)
    }

    /// Melt and reveal.
    pub(crate) async fn refresh(&self, old: &Coin, denoms: &[Denom], amount: &str) -> (Refresh, Vec<Coin>) {
        let refresh = self.plan_refresh(old, denoms, amount).await;
        let noreveal_index = self.melt(&refresh).await;
        let coins = self.reveal(&refresh, noreveal_index).await;
        (refresh, coins)
    }
}

/// The coins that the old coin's owner derives from the link answer.
pub(crate) fn linked_coins(old: &Coin, entry: &LinkEntry) -> Vec<(EddsaPublicKey, DenomSignature)> {
    let secret = link_transfer_secret(old.key(), &entry.transfer_pub);
    let age = old.age.as_ref().map(|age| age.derive(secret.as_bytes()).unwrap());
    let h_age = age.map(|age| age.commitment().hash());
    let mut coins = Vec::new();
    for (coin, index) in entry.new_coins.iter().zip(0..) {
        assert_eq!(coin.coin_idx, index);
        let secrets = CoinSecrets::from_master(&secret.planchet_master_secret(index), &coin.ewv);
        let (planchet, unblind) =
            secrets.prepare(&coin.denom_pub, &coin.ewv, coin.cs_nonce.as_ref(), h_age.as_ref()).unwrap();
        let h_denom_pub = coin.denom_pub.h_denom_pub();
        let link = WalletCoinLink {
            h_denom_pub,
            transfer_pub: entry.transfer_pub,
            h_age_commitment: Zeros,
            h_coin_envelope: planchet.hash(&h_denom_pub),
        };
        assert!(link.verify(&old.coin_pub, &coin.link_sig), "link signature");
        coins.push((secrets.coin_pub(), unblind.unblind(&coin.ev_sig).unwrap()));
    }
    coins
}

// --- Recoup

impl Coin {
    fn recoup_request(&self, coin_sig: batzen_crypto::EddsaSignature) -> RecoupRequest {
        RecoupRequest {
            denom_pub_hash: self.denom.h,
            denom_sig: self.denom_sig.clone(),
            ewv: self.values,
            coin_sig,
            coin_blind_key_secret: self.secrets.blinding.clone(),
            h_age_commitment: self.h_age(),
            cs_nonce: self.nonce,
        }
    }

    pub(crate) fn recoup(&self) -> RecoupRequest {
        let coin_blind = self.secrets.blinding.clone();
        let message = WalletCoinRecoup { h_denom_pub: self.denom.h, coin_blind };
        self.recoup_request(message.sign(self.key()))
    }

    pub(crate) fn recoup_refresh(&self) -> RecoupRequest {
        let coin_blind = self.secrets.blinding.clone();
        let message = WalletCoinRecoupRefresh { h_denom_pub: self.denom.h, coin_blind };
        self.recoup_request(message.sign(self.key()))
    }
}
