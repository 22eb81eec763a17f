//! Enumerations whose values are named as in the code.

/// Declares an enumeration, and with it the list of its values and their names.
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        pub enum $type:ident {
            $($(#[$doc:meta])* $value:ident $(= $number:literal)?,)+
        }
    ) => {
        $(#[$meta])*
        pub enum $type {
            $($(#[$doc])* $value $(= $number)?,)+
        }

        impl $type {
            /// Every value, in the order of the declaration.
            pub const ALL: [Self; [$(Self::$value),+].len()] = [$(Self::$value),+];

            /// The name as status, conditions, events and metrics show it, such as `ResourceExhausted`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => stringify!($value),)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use named_enum;
