//! Protobuf with a limit on a message's size in memory: an empty element of a list takes two bytes on the
//! wire and a hundred as a struct.

use std::marker::PhantomData;

use bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// The most fields of a message, each element of a list or a map counted: more machines than any cluster has,
/// and less than fills the memory.
pub(crate) const MAX_FIELDS: usize = 200_000;

/// The codec of all services.
pub(crate) struct BoundedCodec<T, U>(PhantomData<(T, U)>);

/// Refuses a message of too many fields before any of it is decoded.
pub(crate) struct BoundedDecoder<U>(PhantomData<U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let message = buf.copy_to_bytes(buf.remaining());
        let malformed = |error: DecodeError| Status::internal(error.to_string());
        if has_too_many_fields(&message).map_err(malformed)? {
            return Err(Status::internal(format!(
                "it has too many elements: more than {MAX_FIELDS}"
            )));
        }
        U::decode(message).map(Some).map_err(malformed)
    }
}

fn has_too_many_fields(mut message: &[u8]) -> Result<bool, DecodeError> {
    for _ in 0..MAX_FIELDS {
        if message.is_empty() {
            return Ok(false);
        }
        let (tag, wire_type) = decode_key(&mut message)?;
        skip_field(wire_type, tag, &mut message, DecodeContext::default())?;
    }
    Ok(!message.is_empty())
}
