//! The INI configuration dialect: sections, includes, path expansion, durations, amounts.
