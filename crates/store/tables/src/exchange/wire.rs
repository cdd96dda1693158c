//! Bank accounts and outgoing transfers.

use batzen_crypto::{EddsaSignature, HashCode, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, table};

use super::{AccountId, LeaseJob, MerchantPub, PaytoHash, TransferKind};

table! {
    /// Identifies a bank account.
    pub key struct WireTargetKey {
        /// Hash of its payto URI.
        pub h_payto: PaytoHash,
    }

    /// A bank account.
    pub struct WireTargetRow {
        /// Its payto URI.
        pub payto_uri: String,
    }

    /// Bank accounts that sent or receive money.
    pub WireTargets(30, "wire_targets"): WireTargetKey => WireTargetRow, claims();
}

table! {
    /// Identifies a transient aggregate.
    pub key struct AggregateKey {
        /// The merchant's account.
        pub h_payto: PaytoHash,
        /// The merchant.
        pub merchant_pub: MerchantPub,
        /// The account that will pay.
        pub account: AccountId,
    }

    /// Deposits that were aggregated but not paid yet, because the sum is too small or held back, or more
    /// deposits are expected.
    pub struct AggregateRow {
        /// Contributions − refunds − deposit fees; the wire fee is not yet taken off.
        pub total: Money,
        /// The identifier of their future transfer.
        pub wtid: Wtid,
        /// The KYC requirement that holds it back, if any.
        pub kyc_row: Option<u64>,
    }

    /// Transient aggregates.
    pub Aggregates(31, "aggregates"): AggregateKey => AggregateRow, updated(), shard(32);
    /// By h_payto: KYC release.
    BY_TARGET = 1, "by_target", Prefix { key_bytes: 32 };
}

table! {
    /// Identifies a transfer.
    pub key struct WtidKey {
        /// Its identifier.
        pub wtid: Wtid,
    }

    /// A decided transfer to a merchant.
    pub struct WireOutRow {
        /// When it was decided.
        pub time: Timestamp,
        /// The merchant's account.
        pub h_payto: PaytoHash,
        /// The merchant.
        pub merchant_pub: MerchantPub,
        /// The account that pays.
        pub account: AccountId,
        /// The amount wired: the deposits' total − wire fee, rounded down.
        pub amount: Money,
        /// The wire fee.
        pub wire_fee: Money,
    }

    /// Transfers to merchants.
    pub WireOut(32, "wire_out"): WtidKey => WireOutRow;
    /// By h_payto, then time: KYC sums.
    BY_TARGET_TIME = 1, "by_target_time", Ordered;
    |_, row, out| {
        out.add_with(Self::BY_TARGET_TIME, |bytes| {
            row.h_payto.encode(bytes);
            row.time.encode(bytes);
        });
    }
}

table! {
    /// A transfer to be executed by the bank. The commit of this row is the decision to pay. The request
    /// never changes, so it can be repeated safely.
    pub struct PreparedRow {
        /// Its purpose.
        pub kind: TransferKind,
        /// The account that pays.
        pub account: AccountId,
        /// Identifies the request at the bank.
        pub request_uid: HashCode,
        /// The amount.
        pub amount: Money,
        /// The receiver: a row in wire_targets.
        pub h_payto: PaytoHash,
        /// The exchange's base URL, part of the subject.
        pub exchange_base_url: String,
        /// When it was decided.
        pub time: Timestamp,
        /// When the bank accepted it.
        pub finished: Option<Timestamp>,
        /// Why it failed permanently; an operator has to investigate.
        pub failed: Option<String>,
    }

    /// Transfers for the bank.
    pub Prepared(34, "prepared"): WtidKey => PreparedRow, updated();
    /// Transfers neither finished nor failed, in commit order (the value is empty).
    OPEN = 1, "open", Serial;
    /// Failed transfers, in commit order (the value is empty).
    FAILED = 2, "failed", Serial;
    |_, row, out| {
        if row.failed.is_some() {
            out.add_with(Self::FAILED, |_| {});
        } else if row.finished.is_none() {
            out.add_with(Self::OPEN, |_| {});
        }
    }
}

table! {
    /// An order of the offline key's holder to pay out profit.
    pub struct DrainRow {
        /// The configuration section of the account to debit, as signed.
        pub account_section: String,
        /// The receiver.
        pub payto_uri: String,
        /// The order's date.
        pub date: Timestamp,
        /// The amount.
        pub amount: Money,
        /// The master key's signature (`MASTER_DRAIN_PROFIT`).
        pub master_sig: EddsaSignature,
        /// Whether its transfer has been prepared.
        pub executed: bool,
    }

    /// Orders to pay out profit.
    pub Drains(35, "drains"): WtidKey => DrainRow;
    /// Orders not yet executed, in commit order (the value is empty).
    OPEN = 1, "open", Serial;
    |_, row, out| {
        if !row.executed {
            out.add_with(Self::OPEN, |_| {});
        }
    }
}

table! {
    /// Names one of the exchange's accounts.
    pub key struct AccountKey {
        /// The account.
        pub account: AccountId,
    }

    /// The progress of the import of credits.
    pub struct CursorRow {
        /// The last bank row that was read.
        pub bank_row: u64,
    }

    /// The progress of the import of credits by account.
    pub Cursors(36, "cursors"): AccountKey => CursorRow, updated();
}

table! {
    /// Identifies a credit that is set aside.
    pub key struct AsideKey {
        /// The exchange's account that received it.
        pub account: AccountId,
        /// Its row at the bank; 0 if the bank named none.
        pub bank_row: u64,
        /// The hash of its text if the bank named no row, else zero.
        pub h_text: [u8; 32],
    }

    /// A credit at the bank that fills no reserve: it cannot be read, is in another currency, or is refused. The row is
    /// kept when it is settled.
    pub struct AsideRow {
        /// The reason.
        pub reason: String,
        /// The credit as the bank sent it, in JSON.
        pub text: String,
        /// When it was set aside.
        pub time: Timestamp,
        /// When it was settled: booked by a retry, or dismissed by an operator.
        pub settled: Option<Timestamp>,
        /// The operator's or the program's note on that.
        pub note: Option<String>,
    }

    /// Credits that are set aside.
    pub CreditsAside(80, "credits_aside"): AsideKey => AsideRow, updated();
    /// Credits that are not settled, in commit order (the value is empty).
    OPEN = 1, "open", Serial;
    |_, row, out| {
        if row.settled.is_none() {
            out.add_with(Self::OPEN, |_| {});
        }
    }
}

table! {
    /// Identifies a lease: a part of a job that several workers share.
    pub key struct LeaseKey {
        /// The job.
        pub job: LeaseJob,
        /// The account that is watched; zero for jobs that have none.
        pub account: AccountId,
        /// The part: the bank row after which its range begins, the number of a slot, or, from
        /// [`WorkerLeases::MEMBERS`] on, a worker.
        pub start: u64,
    }

    /// A worker's lease on a part of a job, with its end and the progress. It only divides the work: if two
    /// workers handle one item, it still counts once.
    pub struct LeaseRow {
        /// The last bank row of the range.
        pub end: u64,
        /// The last bank row that was imported.
        pub latest: u64,
        /// Whether the whole range has been imported.
        pub is_complete: bool,
        /// The worker; 0: none.
        pub holder: u64,
        /// When the lease ends. The lease of a slot ends with that of its worker.
        pub until: Timestamp,
    }

    /// The leases of workers.
    pub WorkerLeases(38, "worker_leases"): LeaseKey => LeaseRow;
    /// By job and account.
    BY_JOB = 1, "by_job", Prefix { key_bytes: 9 };
}

impl WorkerLeases {
    /// The first number of a worker.
    pub const MEMBERS: u64 = 1 << 63;
}
