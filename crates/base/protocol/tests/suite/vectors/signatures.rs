//! Every signature of the protocol.

use batzen_crypto::hash::sha512;
use batzen_crypto::{EddsaPrivateKey, EddsaSignature, ExpandedSigner};
use batzen_protocol::signatures::*;
use batzen_protocol::{canonical, hash_text, payto};

use crate::vectors::case::Case;

fn check<M: SignedMessage>(case: Case<'_>, message: &M) {
    assert_eq!(M::PURPOSE, case.u32("purpose"));
    assert_eq!(M::SIZE, usize::try_from(case.u32("size")).unwrap());
    assert_eq!(message.message().as_ref(), case.hex("message"));
    let key: EddsaPrivateKey = case.value("private_key");
    assert_eq!(key.public_key(), case.value("public_key"));
    let expected: EddsaSignature = case.value("signature");
    assert_eq!(message.sign(&key), expected);
    assert_eq!(message.sign_with(&ExpandedSigner::new(&key)), expected);
    assert!(message.verify(&key.public_key(), &expected));
    assert!(!message.verify(&EddsaPrivateKey::generate().public_key(), &expected));
}

/// Checks a case of one of the `sig_…` groups; false for an unknown group.
pub(super) fn signature(group: &str, case: Case<'_>) -> bool {
    if !group.starts_with("sig_") {
        return false;
    }
    let i = case.inputs();
    match group {
        "sig_officer_aml_decision" => check(
            case,
            &AmlDecision {
                h_justification: sha512(i.text("justification").as_bytes()),
                decision_time: Zeros,
                new_threshold: i.amount("new_threshold"),
                h_payto: i.value("h_payto"),
                new_state: i.u32("new_state"),
            },
        ),
        "sig_wallet_purse_create" => check(
            case,
            &WalletPurseCreate {
                purse_expiration: i.time("purse_expiration"),
                purse_amount: i.amount("amount"),
                h_contract_terms: i.value("h_contract_terms"),
                merge_pub: i.value("merge_pub"),
                min_age: i.u32("min_age"),
            },
        ),
        "sig_wallet_purse_delete" => check(case, &WalletPurseDelete {}),
        "sig_wallet_econtract_upload" => check(
            case,
            &WalletPurseEcontract {
                h_econtract: sha512(&i.hex("econtract")),
                contract_pub: i.value("contract_pub"),
            },
        ),
        "sig_wallet_purse_status" => check(case, &WalletPurseStatus {}),
        "sig_wallet_purse_deposit" => check(
            case,
            &WalletPurseDeposit {
                coin_amount: i.amount("amount"),
                h_denom_pub: i.value("h_denom_pub"),
                h_age_commitment: i.value("h_age_commitment"),
                purse_pub: i.value("purse_pub"),
                h_exchange_base_url: hash_text(i.text("exchange_base_url")),
            },
        ),
        "sig_wallet_purse_merge" => check(
            case,
            &WalletPurseMerge {
                merge_timestamp: i.time("merge_timestamp"),
                purse_pub: i.value("purse_pub"),
                h_payto: payto::h_payto(i.text("reserve_uri")),
            },
        ),
        "sig_wallet_account_merge" => check(
            case,
            &WalletAccountMerge {
                purse_expiration: i.time("purse_expiration"),
                purse_amount: i.amount("amount"),
                purse_fee: i.amount("purse_fee"),
                h_contract_terms: i.value("h_contract_terms"),
                purse_pub: i.value("purse_pub"),
                merge_timestamp: i.time("merge_timestamp"),
                min_age: i.u32("min_age"),
                flags: i.u32("flags"),
            },
        ),
        "sig_wallet_reserve_open" => check(
            case,
            &WalletReserveOpen {
                reserve_payment: i.amount("reserve_payment"),
                request_timestamp: i.time("request_timestamp"),
                reserve_expiration: i.time("reserve_expiration"),
                purse_limit: i.u32("purse_limit"),
            },
        ),
        "sig_wallet_reserve_open_deposit" => check(
            case,
            &WalletReserveOpenDeposit {
                reserve_sig: i.value("reserve_sig"),
                coin_contribution: i.amount("coin_contribution"),
            },
        ),
        "sig_wallet_reserve_close" => check(
            case,
            &WalletReserveClose {
                request_timestamp: i.time("request_timestamp"),
                target_h_payto: i.value("h_payto"),
            },
        ),
        "sig_wallet_account_setup" => {
            check(case, &WalletAccountSetup { threshold: i.amount("balance_threshold") });
        }
        "sig_wallet_reserve_attest_request" => check(
            case,
            &WalletReserveAttestDetails {
                request_timestamp: i.time("request_timestamp"),
                h_details: canonical::plain_hash(i.get("details")).unwrap(),
            },
        ),
        "sig_wallet_deposit" => check(
            case,
            &WalletCoinDeposit {
                h_contract_terms: i.value("h_contract_terms"),
                h_age_commitment: i.value("h_age_commitment"),
                h_policy: i.value("h_policy"),
                h_wire: i.value("h_wire"),
                h_denom_pub: i.value("h_denom_pub"),
                wallet_timestamp: i.time("wallet_timestamp"),
                refund_deadline: i.time("refund_deadline"),
                amount_with_fee: i.amount("amount"),
                deposit_fee: i.amount("deposit_fee"),
                merchant_pub: i.value("merchant_pub"),
            },
        ),
        "sig_wallet_melt" => check(
            case,
            &WalletCoinMelt {
                refresh_commitment: i.value("rc"),
                h_denom_pub: i.value("h_denom_pub"),
                h_age_commitment: i.value("h_age_commitment"),
                amount_with_fee: i.amount("amount_with_fee"),
                melt_fee: i.amount("melt_fee"),
            },
        ),
        "sig_wallet_link" => check(
            case,
            &WalletCoinLink {
                h_denom_pub: i.value("h_denom_pub"),
                transfer_pub: i.value("transfer_pub"),
                h_age_commitment: Zeros,
                h_coin_envelope: i.value("bch"),
            },
        ),
        "sig_wallet_withdraw" => check(
            case,
            &WalletReserveWithdraw {
                amount_with_fee: i.amount("amount_with_fee"),
                h_denom_pub: i.value("h_denom_pub"),
                h_coin_envelope: i.value("bch"),
            },
        ),
        "sig_wallet_recoup" => check(
            case,
            &WalletCoinRecoup { h_denom_pub: i.value("h_denom_pub"), coin_blind: i.value("coin_bks") },
        ),
        "sig_wallet_recoup_refresh" => check(
            case,
            &WalletCoinRecoupRefresh { h_denom_pub: i.value("h_denom_pub"), coin_blind: i.value("coin_bks") },
        ),
        "sig_wallet_reserve_history" => check(
            case,
            &WalletReserveHistory { request_timestamp: i.time("ts"), history_fee: i.amount("history_fee") },
        ),
        "sig_wallet_reserve_status" => check(case, &WalletReserveStatus { request_timestamp: i.time("ts") }),
        "sig_merchant_refund" => check(
            case,
            &MerchantRefund {
                h_contract_terms: i.value("h_contract_terms"),
                coin_pub: i.value("coin_pub"),
                rtransaction_id: i.get("rtransaction_id").as_u64().unwrap(),
                refund_amount: i.amount("amount"),
            },
        ),
        "sig_merchant_deposit" => check(
            case,
            &MerchantTrackTransaction {
                h_contract_terms: i.value("h_contract_terms"),
                h_wire: i.value("h_wire"),
                coin_pub: i.value("coin_pub"),
            },
        ),
        "sig_exchange_online_deposit_confirmation" => check(
            case,
            &ExchangeConfirmDeposit {
                h_contract_terms: i.value("h_contract_terms"),
                h_wire: i.value("h_wire"),
                h_policy: i.value("h_policy"),
                exchange_timestamp: i.time("exchange_timestamp"),
                wire_deadline: i.time("wire_deadline"),
                refund_deadline: i.time("refund_deadline"),
                amount_without_fee: i.amount("amount_without_fee"),
                coin_pub: i.value("coin_pub"),
                merchant_pub: i.value("merchant_pub"),
            },
        ),
        "sig_exchange_online_refund_confirmation" => check(
            case,
            &ExchangeConfirmRefund {
                h_contract_terms: i.value("h_contract_terms"),
                coin_pub: i.value("coin_pub"),
                merchant_pub: i.value("merchant"),
                rtransaction_id: i.get("rtransaction_id").as_u64().unwrap(),
                refund_amount: i.amount("refund_amount"),
            },
        ),
        "sig_exchange_online_melt_confirmation" => check(
            case,
            &ExchangeConfirmMelt {
                refresh_commitment: i.value("rc"),
                noreveal_index: i.u32("noreveal_index"),
            },
        ),
        "sig_exchange_online_purse_refund" => check(
            case,
            &ExchangeConfirmPurseRefund {
                purse_pub: i.value("purse_pub"),
                coin_pub: i.value("coin_pub"),
                refunded_amount: i.amount("amount_without_fee"),
                refund_fee: i.amount("refund_fee"),
            },
        ),
        "sig_exchange_online_key_set" => {
            check(case, &ExchangeKeySet { list_issue_date: i.time("timestamp"), hc: i.value("hc") });
        }
        "sig_exchange_online_account_setup_success" => check(
            case,
            &ExchangeAccountSetupSuccess {
                h_payto: i.value("h_payto"),
                h_kyc: canonical::plain_hash(i.get("kyc")).unwrap(),
                timestamp: i.time("timestamp"),
            },
        ),
        "sig_exchange_online_wire_deposit" => check(
            case,
            &ExchangeConfirmWireDeposit {
                total: i.amount("total"),
                wire_fee: i.amount("wire_fee"),
                merchant_pub: i.value("merchant_pub"),
                h_payto: payto::h_payto(i.text("payto")),
                h_details: i.value("h_details"),
            },
        ),
        "sig_exchange_online_confirm_wire" => check(
            case,
            &ExchangeConfirmWire {
                h_wire: i.value("h_wire"),
                h_contract_terms: i.value("h_contract_terms"),
                wtid: i.value("wtid"),
                coin_pub: i.value("coin_pub"),
                execution_time: i.time("execution_time"),
                coin_contribution: i.amount("coin_contribution"),
            },
        ),
        "sig_exchange_online_confirm_recoup" => check(
            case,
            &ExchangeConfirmRecoup {
                timestamp: i.time("timestamp"),
                recoup_amount: i.amount("recoup_amount"),
                coin_pub: i.value("coin_pub"),
                reserve_pub: i.value("reserve_pub"),
            },
        ),
        "sig_exchange_online_confirm_recoup_refresh" => check(
            case,
            &ExchangeConfirmRecoupRefresh {
                timestamp: i.time("timestamp"),
                recoup_amount: i.amount("recoup_amount"),
                coin_pub: i.value("coin_pub"),
                old_coin_pub: i.value("old_coin_pub"),
            },
        ),
        "sig_exchange_online_denomination_unknown" => check(
            case,
            &ExchangeAffirmDenomUnknown {
                timestamp: i.time("timestamp"),
                h_denom_pub: i.value("h_denom_pub"),
            },
        ),
        "sig_exchange_online_denomination_expired" => check(
            case,
            &ExchangeAffirmDenomExpired {
                timestamp: i.time("timestamp"),
                operation: OperationName::new(i.text("op")),
                h_denom_pub: i.value("h_denom_pub"),
            },
        ),
        "sig_exchange_online_reserve_closed" => check(
            case,
            &ExchangeReserveClosed {
                timestamp: i.time("timestamp"),
                closing_amount: i.amount("closing_amount"),
                closing_fee: i.amount("closing_fee"),
                reserve_pub: i.value("reserve_pub"),
                h_payto: payto::h_payto(i.text("payto")),
                wtid: i.value("wtid"),
            },
        ),
        "sig_exchange_online_reserve_attest_details" => check(
            case,
            &ExchangeReserveAttestDetails {
                attest_timestamp: i.time("attest_timestamp"),
                expiration_time: i.time("expiration_time"),
                reserve_pub: i.value("reserve_pub"),
                h_attributes: canonical::plain_hash(i.get("attributes")).unwrap(),
            },
        ),
        "sig_exchange_online_purse_created" => check(
            case,
            &ExchangeConfirmPurseCreation {
                exchange_time: i.time("exchange_time"),
                purse_expiration: i.time("purse_expiration"),
                amount_without_fee: i.amount("amount_without_fee"),
                total_deposited: i.amount("total_deposited"),
                purse_pub: i.value("purse_pub"),
                h_contract_terms: i.value("h_contract_terms"),
            },
        ),
        "sig_exchange_online_purse_merged" => check(
            case,
            &ExchangeConfirmPurseMerged {
                exchange_time: i.time("exchange_time"),
                purse_expiration: i.time("purse_expiration"),
                amount_without_fee: i.amount("amount_without_fee"),
                purse_pub: i.value("purse_pub"),
                reserve_pub: i.value("reserve_pub"),
                h_contract_terms: i.value("h_contract_terms"),
                h_provider_url: hash_text(i.text("exchange_url")),
            },
        ),
        "sig_exchange_online_purse_status" => check(
            case,
            &ExchangePurseStatus {
                merge_timestamp: i.time("merge_timestamp"),
                deposit_timestamp: i.time("deposit_timestamp"),
                balance: i.amount("balance"),
            },
        ),
        "sig_exchange_offline_aml_officer_status" => check(
            case,
            &MasterAmlKey {
                change_date: i.time("change_date"),
                officer_pub: i.value("officer_pub"),
                h_officer_name: hash_text(i.text("officer_name")),
                is_active: u32::from(i.flag("is_active")) + 2 * u32::from(i.flag("read_only")),
            },
        ),
        "sig_exchange_offline_auditor_add" => check(
            case,
            &MasterAddAuditor {
                start_date: i.time("start_date"),
                auditor_pub: i.value("auditor_pub"),
                h_auditor_url: hash_text(i.text("auditor_url")),
            },
        ),
        "sig_exchange_offline_auditor_del" => check(
            case,
            &MasterDelAuditor { end_date: i.time("end_date"), auditor_pub: i.value("auditor_pub") },
        ),
        "sig_exchange_offline_denomination_revoke" => {
            check(case, &MasterDenominationKeyRevoked { h_denom_pub: i.value("h_denom_pub") });
        }
        "sig_exchange_offline_signkey_revoke" => {
            check(case, &MasterSigningKeyRevoked { signkey_pub: i.value("exchange_pub") });
        }
        "sig_exchange_offline_signkey_validity" => check(
            case,
            &MasterSigningKeyValidity {
                start: i.time("start_sign"),
                expire: i.time("end_sign"),
                end: i.time("end_legal"),
                signkey_pub: i.value("exchange_pub"),
            },
        ),
        "sig_exchange_offline_denom_validity" => check(
            case,
            &MasterDenominationKeyValidity {
                master_pub: case.value("public_key"),
                start: i.time("stamp_start"),
                expire_withdraw: i.time("stamp_expire_withdraw"),
                expire_deposit: i.time("stamp_expire_deposit"),
                expire_legal: i.time("stamp_expire_legal"),
                value: i.amount("coin_value"),
                fee_withdraw: i.amount("fee_withdraw"),
                fee_deposit: i.amount("fee_deposit"),
                fee_refresh: i.amount("fee_refresh"),
                fee_refund: i.amount("fee_refund"),
                h_denom_pub: i.value("h_denom_pub"),
            },
        ),
        "sig_exchange_offline_partner_details" => check(
            case,
            &MasterPartnerDetails {
                partner_pub: i.value("partner_pub"),
                start_date: i.time("start_date"),
                end_date: i.time("end_date"),
                wad_frequency: i.duration("wad_frequency"),
                wad_fee: i.amount("wad_fee"),
                h_url: hash_text(i.text("partner_base_url")),
            },
        ),
        "sig_exchange_offline_profit_drain" => check(
            case,
            &MasterDrainProfit {
                wtid: i.value("wtid"),
                date: i.time("date"),
                amount: i.amount("amount"),
                h_section: hash_text(i.text("account_section")),
                h_payto: payto::h_payto(i.text("payto_uri")),
            },
        ),
        "sig_exchange_secmod_eddsa" => check(
            case,
            &SmSigningKey {
                exchange_pub: i.value("exchange_pub"),
                anchor_time: i.time("start_sign"),
                duration: i.duration("duration"),
            },
        ),
        "sig_exchange_secmod_rsa" => check(
            case,
            &SmRsaDenominationKey {
                h_rsa: i.value("h_rsa"),
                h_section_name: hash_text(i.text("section_name")),
                anchor_time: i.time("start_sign"),
                duration_withdraw: i.duration("duration"),
            },
        ),
        "sig_exchange_secmod_cs" => check(
            case,
            &SmCsDenominationKey {
                h_cs: i.value("h_cs"),
                h_section_name: hash_text(i.text("section_name")),
                anchor_time: i.time("start_sign"),
                duration_withdraw: i.duration("duration"),
            },
        ),
        "sig_auditor_denom_validity" => check(
            case,
            &AuditorExchangeKeys {
                h_auditor_url: hash_text(i.text("auditor_url")),
                master_pub: i.value("master_pub"),
                start: i.time("stamp_start"),
                expire_withdraw: i.time("stamp_expire_withdraw"),
                expire_deposit: i.time("stamp_expire_deposit"),
                expire_legal: i.time("stamp_expire_legal"),
                value: i.amount("coin_value"),
                fee_withdraw: i.amount("fee_withdraw"),
                fee_deposit: i.amount("fee_deposit"),
                fee_refresh: i.amount("fee_refresh"),
                fee_refund: i.amount("fee_refund"),
                h_denom_pub: i.value("h_denom_pub"),
            },
        ),
        "sig_exchange_offline_wire_fee" => check(
            case,
            &MasterWireFees {
                h_wire_method: hash_text(i.text("payment_method")),
                start_date: i.time("start_time"),
                end_date: i.time("end_time"),
                wire_fee: i.amount("wire_fee"),
                closing_fee: i.amount("closing_fee"),
            },
        ),
        "sig_exchange_offline_global_fee" => check(
            case,
            &MasterGlobalFees {
                start_date: i.time("start_time"),
                end_date: i.time("end_time"),
                purse_timeout: i.duration("purse_timeout"),
                history_expiration: i.duration("history_expiration"),
                history_fee: i.amount("history_fee"),
                account_fee: i.amount("account_fee"),
                purse_fee: i.amount("purse_fee"),
                purse_account_limit: i.u32("purse_account_limit"),
            },
        ),
        "sig_exchange_offline_wire_add" => check(
            case,
            &MasterAddWire { start_date: i.time("now"), h_payto: payto::h_payto(i.text("payto_uri")) },
        ),
        "sig_exchange_offline_wire_del" => check(
            case,
            &MasterDelWire { end_date: i.time("now"), h_payto: payto::h_payto(i.text("payto_uri")) },
        ),
        "sig_exchange_offline_wire_details" => {
            check(case, &MasterWireDetails { h_wire_details: payto::h_payto(i.text("payto_uri")) });
        }
        "sig_merchant_wire_details" => {
            check(
                case,
                &MerchantWireDetails { h_wire: payto::h_wire(i.text("payto_uri"), &i.value("salt")) },
            );
        }
        "sig_merchant_pay" => {
            check(case, &MerchantPaymentOk { h_contract_terms: i.value("h_contract_terms") });
        }
        "sig_merchant_contract" => {
            check(case, &MerchantContract { h_contract_terms: i.value("h_contract_terms") });
        }
        "sig_exchange_offline_extension_manifests_hash" => {
            check(case, &MasterExtension { h_manifests: i.value("h_manifests") });
        }
        "sig_merchant_deposit_wallet_variant" => check(
            case,
            &MerchantTrackTransactionWallet {
                h_contract_terms: i.value("h_contract_terms"),
                h_wire: i.value("h_wire"),
                merchant_pub: i.value("merchant_pub"),
                coin_pub: i.value("coin_pub"),
            },
        ),
        "sig_sync_backup_upload" => {
            check(case, &SyncBackupUpload { h_old: i.value("h_old"), h_new: i.value("h_new") });
        }
        _ => return false,
    }
    true
}
