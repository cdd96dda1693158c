//! Error codes of the participant interface (specification, table of chapter 2.6).

macro_rules! codes {
    ($($name:ident = $code:literal / $text:literal,)*) => {
        /// A code with its usual description.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ApiError {
            $(#[doc = $text] $name = $code,)*
        }

        impl ApiError {
            /// Every code of the switch.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the meaning of the code.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    CommunicationError = 1000 / "Communication error",
    DestinationCommunicationError = 1001 / "Destination communication error",
    ServerError = 2000 / "Generic server error",
    InternalServerError = 2001 / "Internal server error",
    NotImplemented = 2002 / "Not implemented",
    ServiceUnavailable = 2003 / "Service currently unavailable",
    ServerTimedOut = 2004 / "Server timed out",
    ServerBusy = 2005 / "Server busy",
    ClientError = 3000 / "Generic client error",
    UnacceptableVersion = 3001 / "Unacceptable version requested",
    UnknownUri = 3002 / "Unknown URI",
    AddPartyError = 3003 / "Add Party information error",
    ValidationError = 3100 / "Generic validation error",
    MalformedSyntax = 3101 / "Malformed syntax",
    MissingElement = 3102 / "Missing mandatory element",
    TooManyElements = 3103 / "Too many elements",
    TooLarge = 3104 / "Too large payload",
    InvalidSignature = 3105 / "Invalid signature",
    ModifiedRequest = 3106 / "Modified request",
    MissingExtension = 3107 / "Missing mandatory extension parameter",
    IdNotFound = 3200 / "Generic ID not found",
    DestinationFspError = 3201 / "Destination FSP error",
    PayerFspIdNotFound = 3202 / "Payer FSP ID not found",
    PayeeFspIdNotFound = 3203 / "Payee FSP ID not found",
    PartyNotFound = 3204 / "Party not found",
    TransferIdNotFound = 3208 / "Transfer ID not found",
    BulkTransferIdNotFound = 3210 / "Bulk transfer ID not found",
    Expired = 3300 / "Generic expired error",
    QuoteExpired = 3302 / "Quote expired",
    TransferExpired = 3303 / "Transfer expired",
    PayerError = 4000 / "Generic payer error",
    PayerFspInsufficientLiquidity = 4001 / "Payer FSP insufficient liquidity",
    PayerRejection = 4100 / "Generic payer rejection",
    PayerLimitError = 4200 / "Payer limit error",
    PayerPermissionError = 4300 / "Payer permission error",
    PayerBlocked = 4400 / "Generic payer blocked error",
    PayeeError = 5000 / "Generic payee error",
    PayeeFspInsufficientLiquidity = 5001 / "Payee FSP insufficient liquidity",
    PayeeRejection = 5100 / "Generic payee rejection",
    PayeeRejected = 5104 / "Payee rejected transaction request",
    PayeeFspRejected = 5105 / "Payee FSP rejected transaction request",
    PayeeCurrencyUnsupported = 5106 / "Payee unsupported currency",
    PayeeLimitError = 5200 / "Payee limit error",
    PayeePermissionError = 5300 / "Payee permission error",
    PayeeBlocked = 5400 / "Generic payee blocked error",
}

impl ApiError {
    /// The four digits as a number.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The code with this number.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|error| error.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_four_digits_and_are_found_again() {
        for error in ApiError::ALL {
            assert!((1000..=5999).contains(&error.code()));
            assert_eq!(ApiError::from_code(error.code()), Some(*error));
        }
        assert_eq!(ApiError::from_code(3999), None);
    }
}
