//! Enums of the reasons why a service refuses.

/// Declares an enum of refusals, each with its text and the error code of its answer. Those in `transparent { … }` behind
/// it have the text and the code of the error in them.
///
/// ```
/// batzen_protocol::refusals! {
///     /// Why a command was refused.
///     pub enum Refusal {
///         /// No account has this name.
///         Unknown(String) = "no account {0}", BANK_UNKNOWN_ACCOUNT;
///         /// Both sides are the same account.
///         SameAccount = "both sides are the same account", BANK_SAME_ACCOUNT;
///     }
/// }
/// ```
#[macro_export]
macro_rules! refusals {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $(
            $(#[$doc:meta])*
            $reason:ident $(($inner:ty))? $({ $($fields:tt)* })? = $text:tt, $code:ident;
        )+
    } $(transparent { $($(#[$other_doc:meta])* $other:ident($error:ty);)+ })?) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, ::thiserror::Error)]
        $vis enum $name {
            $($(#[$doc])* #[error($text)] $reason $(($inner))? $({ $($fields)* })?,)+
            $($($(#[$other_doc])* #[error(transparent)] $other(#[from] $error),)+)?
        }

        impl $name {
            /// The error code of the answer.
            #[must_use]
            $vis fn code(&self) -> $crate::ErrorCode {
                match self {
                    $(Self::$reason { .. } => $crate::ErrorCode::$code,)+
                    $($(Self::$other(error) => error.code(),)+)?
                }
            }
        }
    };
}
