//! Tools for tests with stores of their own.

/// In an `impl Backend`: passes all reads on to another backend. A test then decides how commits end.
///
/// `delegate_reads!(self, self.inner)` delegates every read; `delegate_reads!(self, self.inner, except get_many)` leaves
/// reads by key to the test.
#[macro_export]
macro_rules! delegate_reads {
    ($self:ident, $inner:expr) => {
        fn get_many(
            &$self,
            table: &'static $crate::TableDef,
            keys: &[Vec<u8>],
        ) -> $crate::Result<Vec<Option<$crate::RawRow>>> {
            $crate::Backend::get_many(&$inner, table, keys)
        }
        fn read_many(&$self, reads: &[$crate::Read]) -> $crate::Result<Vec<$crate::ReadAnswer>> {
            $crate::Backend::read_many(&$inner, reads)
        }
        $crate::delegate_reads!($self, $inner, except get_many);
    };
    ($self:ident, $inner:expr, except get_many) => {
        fn lookup_many(
            &$self,
            table: &'static $crate::TableDef,
            index: u8,
            values: &[Vec<u8>],
        ) -> $crate::Result<Vec<Vec<$crate::RawRecord>>> {
            $crate::Backend::lookup_many(&$inner, table, index, values)
        }
        fn range(
            &$self,
            table: &'static $crate::TableDef,
            index: u8,
            from: ::std::ops::Bound<&[u8]>,
            to: ::std::ops::Bound<&[u8]>,
            limit: usize,
            descending: bool,
        ) -> $crate::Result<Vec<$crate::RawRecord>> {
            $crate::Backend::range(&$inner, table, index, from, to, limit, descending)
        }
        fn positions(
            &$self,
            table: &'static $crate::TableDef,
            index: u8,
            from: ::std::ops::Bound<&[u8]>,
            to: ::std::ops::Bound<&[u8]>,
            visit: &mut dyn FnMut(&[u8]) -> ::std::ops::ControlFlow<()>,
        ) -> $crate::Result<()> {
            $crate::Backend::positions(&$inner, table, index, from, to, visit)
        }
        fn scan(
            &$self,
            table: &'static $crate::TableDef,
            visit: &mut dyn FnMut($crate::RawRecord) -> ::std::ops::ControlFlow<()>,
        ) -> $crate::Result<()> {
            $crate::Backend::scan(&$inner, table, visit)
        }
        fn freeze(
            &$self,
            tables: &[&'static $crate::TableDef],
        ) -> $crate::Result<Box<dyn $crate::FrozenRows>> {
            $crate::Backend::freeze(&$inner, tables)
        }
        fn count(&$self, table: &'static $crate::TableDef) -> $crate::Result<u64> {
            $crate::Backend::count(&$inner, table)
        }
        fn stats(&$self) -> $crate::StoreStats {
            $crate::Backend::stats(&$inner)
        }
    };
}
