//! Commands to the rules, and their outcomes: one file per family.
//!
//! All amounts are in the exchange's currency. All signatures of a request have been verified.

mod accounts;
mod archive;
mod coins;
mod garbage;
mod kyc;
mod purses;
mod reserves;
mod transfers;

use super::management;

pub use accounts::*;
pub use archive::*;
pub use coins::*;
pub use garbage::*;
pub use kyc::*;
pub use purses::*;
pub use reserves::*;
pub use transfers::*;

/// A change of money state, or of the key set.
#[derive(Debug, Clone)]
pub enum Command {
    /// Coins from a reserve.
    Withdraw(Withdraw),
    /// The fee of a full reserve history.
    ReserveHistory(ReserveHistory),
    /// Incoming transfers.
    Credits(Credits),
    /// Return an expired reserve's money.
    CloseReserve(CloseReserve),
    /// Coins for a contract.
    Deposit(Deposit),
    /// Money back from a merchant.
    Refund(Refund),
    /// Begin a refresh.
    Melt(Melt),
    /// Finish the refresh.
    Reveal(Reveal),
    /// A coin of a revoked denomination goes back to its reserve.
    Recoup(Recoup),
    /// A coin of a revoked denomination goes back to the coin that it was changed from.
    RecoupRefresh(RecoupRefresh),
    /// A payer creates a purse with coins.
    PurseCreate(PurseCreate),
    /// Coins for a purse.
    PurseDeposit(PurseDeposit),
    /// A reserve takes a full purse.
    PurseMerge(PurseMerge),
    /// A reserve creates a purse for others to pay into.
    ReservePurse(ReservePurse),
    /// The owner of a purse deletes it.
    PurseDelete(PurseDelete),
    /// An expired purse gives its coins their money back.
    PurseExpire(PurseExpire),
    /// Prolong a reserve, or buy purses.
    ReserveOpen(ReserveOpen),
    /// The owner of a reserve wants it closed.
    RequestClose(RequestClose),
    /// Store a KYC requirement.
    RequireKyc(RequireKyc),
    /// Begin an identification.
    StartKyc(StartKyc),
    /// A provider has identified a customer.
    FinishKyc(FinishKyc),
    /// A customer has entered attributes for officers.
    SubmitKyc(SubmitKyc),
    /// An officer decides on them.
    DecideKyc(DecideKyc),
    /// The payouts of an identified customer were looked at.
    ClearKycAlert(ClearKycAlert),
    /// Deposits of a merchant become a transfer.
    Aggregate(Aggregate),
    /// Record transfers that the bank accepted.
    TransfersDone(TransfersDone),
    /// Record that the bank refused a transfer for good.
    TransferFailed(TransferFailed),
    /// Retry a failed transfer, by order of an operator.
    TransferRetry(TransferRetry),
    /// An order to pay out profit becomes a transfer.
    ExecuteDrain(ExecuteDrain),
    /// A change of the key set.
    Management(management::Command),
    /// Leases of workers.
    Lease(Lease),
    /// Rows that are no longer needed.
    Collect(Collect),
    /// Rows that leave for an archive.
    Archive(Archive),
}

/// The answer to a command that took effect, now or before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// To [`Command::Withdraw`].
    Withdraw(Withdrawn),
    /// To [`Command::ReserveHistory`].
    ReserveHistory(HistoryPaid),
    /// To [`Command::Credits`].
    Credits(Credited),
    /// To [`Command::CloseReserve`].
    CloseReserve(Closed),
    /// To [`Command::Deposit`].
    Deposit(Deposited),
    /// To [`Command::Refund`].
    Refund(Refunded),
    /// To [`Command::Melt`].
    Melt(Melted),
    /// To [`Command::Reveal`].
    Reveal(Revealed),
    /// To [`Command::Recoup`].
    Recoup(Recouped),
    /// To [`Command::RecoupRefresh`].
    RecoupRefresh(RecoupRefreshed),
    /// To [`Command::PurseCreate`] and [`Command::ReservePurse`].
    PurseCreate(PurseCreated),
    /// To [`Command::PurseDeposit`].
    PurseDeposit(PurseDeposited),
    /// To [`Command::PurseMerge`].
    PurseMerge(PurseMerged),
    /// To [`Command::PurseDelete`].
    PurseDelete(PurseDeleted),
    /// To [`Command::PurseExpire`].
    PurseExpire(PurseExpired),
    /// To [`Command::ReserveOpen`].
    ReserveOpen(ReserveOpened),
    /// To [`Command::RequestClose`].
    RequestClose(CloseRequested),
    /// To [`Command::RequireKyc`].
    RequireKyc(KycRequirement),
    /// To [`Command::StartKyc`].
    StartKyc(KycStarted),
    /// To [`Command::FinishKyc`].
    FinishKyc(KycFinished),
    /// To [`Command::SubmitKyc`].
    SubmitKyc(KycSubmitted),
    /// To [`Command::DecideKyc`].
    DecideKyc(KycDecided),
    /// To [`Command::ClearKycAlert`].
    ClearKycAlert(KycAlertCleared),
    /// To [`Command::Aggregate`].
    Aggregate(Aggregated),
    /// To [`Command::TransfersDone`], [`Command::TransferFailed`] and [`Command::TransferRetry`].
    Transfer(TransferMarked),
    /// To [`Command::ExecuteDrain`].
    Drain(Drained),
    /// To [`Command::Management`].
    Management(management::Outcome),
    /// To [`Command::Lease`].
    Lease(Leased),
    /// To [`Command::Collect`].
    Collect(Collected),
    /// To [`Command::Archive`].
    Archive(Archived),
}

/// A command with the type of its outcome.
pub trait TypedCommand: Into<Command> {
    /// Its outcome.
    type Outcome;

    /// Extracts the outcome from the rules' answer.
    ///
    /// # Panics
    /// If it is the outcome of another command, which is a bug in the rules.
    fn outcome(answer: Outcome) -> Self::Outcome;
}

impl TypedCommand for Command {
    type Outcome = Outcome;

    fn outcome(answer: Outcome) -> Outcome {
        answer
    }
}

macro_rules! typed_commands {
    ($($command:path => $variant:ident($typed:path), $outcome:path;)*) => {$(
        impl From<$command> for Command {
            fn from(command: $command) -> Self {
                Self::$variant(command)
            }
        }

        impl TypedCommand for $command {
            type Outcome = $outcome;

            fn outcome(answer: Outcome) -> $outcome {
                match answer {
                    $typed(outcome) => outcome,
                    other => panic!("the rules answered {} with {other:?}", stringify!($command)),
                }
            }
        }
    )*};
}

typed_commands! {
    Withdraw => Withdraw(Outcome::Withdraw), Withdrawn;
    ReserveHistory => ReserveHistory(Outcome::ReserveHistory), HistoryPaid;
    Credits => Credits(Outcome::Credits), Credited;
    CloseReserve => CloseReserve(Outcome::CloseReserve), Closed;
    Deposit => Deposit(Outcome::Deposit), Deposited;
    Refund => Refund(Outcome::Refund), Refunded;
    Melt => Melt(Outcome::Melt), Melted;
    Reveal => Reveal(Outcome::Reveal), Revealed;
    Recoup => Recoup(Outcome::Recoup), Recouped;
    RecoupRefresh => RecoupRefresh(Outcome::RecoupRefresh), RecoupRefreshed;
    PurseCreate => PurseCreate(Outcome::PurseCreate), PurseCreated;
    PurseDeposit => PurseDeposit(Outcome::PurseDeposit), PurseDeposited;
    PurseMerge => PurseMerge(Outcome::PurseMerge), PurseMerged;
    ReservePurse => ReservePurse(Outcome::PurseCreate), PurseCreated;
    PurseDelete => PurseDelete(Outcome::PurseDelete), PurseDeleted;
    PurseExpire => PurseExpire(Outcome::PurseExpire), PurseExpired;
    ReserveOpen => ReserveOpen(Outcome::ReserveOpen), ReserveOpened;
    RequestClose => RequestClose(Outcome::RequestClose), CloseRequested;
    RequireKyc => RequireKyc(Outcome::RequireKyc), KycRequirement;
    StartKyc => StartKyc(Outcome::StartKyc), KycStarted;
    FinishKyc => FinishKyc(Outcome::FinishKyc), KycFinished;
    SubmitKyc => SubmitKyc(Outcome::SubmitKyc), KycSubmitted;
    DecideKyc => DecideKyc(Outcome::DecideKyc), KycDecided;
    ClearKycAlert => ClearKycAlert(Outcome::ClearKycAlert), KycAlertCleared;
    Aggregate => Aggregate(Outcome::Aggregate), Aggregated;
    TransfersDone => TransfersDone(Outcome::Transfer), TransferMarked;
    TransferFailed => TransferFailed(Outcome::Transfer), TransferMarked;
    TransferRetry => TransferRetry(Outcome::Transfer), TransferMarked;
    ExecuteDrain => ExecuteDrain(Outcome::Drain), Drained;
    management::Command => Management(Outcome::Management), management::Outcome;
    Lease => Lease(Outcome::Lease), Leased;
    Collect => Collect(Outcome::Collect), Collected;
    Archive => Archive(Outcome::Archive), Archived;
}
