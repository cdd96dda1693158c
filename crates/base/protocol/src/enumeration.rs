//! Enums whose values have numbers or names.

/// Declares an enum and the array `ALL` of its values; if they have numbers, also `from_number`, and if they have
/// names, `name` and `from_name`.
///
/// ```
/// batzen_protocol::enumeration! {
///     /// The state of a window.
///     pub enum Window {
///         /// Accepts transfers.
///         Open = 1 => "OPEN",
///         /// Its totals are final.
///         Closed = 2 => "CLOSED",
///     }
/// }
/// assert_eq!(Window::from_number(2), Some(Window::Closed));
/// assert_eq!(Window::from_name("OPEN"), Some(Window::Open));
/// assert_eq!(Window::ALL.map(Window::name), ["OPEN", "CLOSED"]);
///
/// batzen_protocol::enumeration! {
///     /// The role of a signer.
///     pub enum Role {
///         /// Creates keys.
///         Primary => "primary",
///         /// Copies them.
///         Follower => "follower",
///     }
/// }
/// ```
#[macro_export]
macro_rules! enumeration {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident = $number:expr => $text:literal,)+
    }) => {
        $crate::enumeration! { $(#[$meta])* $vis enum $name { $($(#[$value_meta])* $value = $number,)+ } }
        $crate::enumeration! { @names $vis $name { $($value => $text,)+ } }
    };
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident = $number:expr,)+
    }) => {
        $crate::enumeration! {
            @declare #[repr(u8)] $(#[$meta])* $vis $name { $($(#[$value_meta])* $value = $number,)+ }
        }

        impl $name {
            /// The value with this number.
            #[must_use]
            $vis const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $(number if number == Self::$value as u8 => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident => $text:literal,)+
    }) => {
        $crate::enumeration! { @declare $(#[$meta])* $vis $name { $($(#[$value_meta])* $value,)+ } }
        $crate::enumeration! { @names $vis $name { $($value => $text,)+ } }
    };
    (@declare $(#[$meta:meta])* $vis:vis $name:ident {
        $($(#[$value_meta:meta])* $value:ident $(= $number:expr)?,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name { $($(#[$value_meta])* $value $(= $number)?,)+ }

        impl $name {
            /// All values.
            $vis const ALL: [Self; [$(stringify!($value)),+].len()] = [$(Self::$value),+];
        }
    };
    (@names $vis:vis $name:ident { $($value:ident => $text:literal,)+ }) => {
        impl $name {
            /// Its name at interfaces, in metrics and in logs.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }

            /// The value with this name.
            #[must_use]
            $vis fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}
