//! Today's wire.

use tonic::{Request, Response, Status};

use super::Tags;
use crate::error::Error;
use crate::plan::tags::Mapping;
use crate::wire::tags::tag_service_server::{TagService, TagServiceServer};
use crate::wire::tags::{
    DeleteTagMemberRequest, DeleteTagMemberResponse, DeleteTagRequest, DeleteTagResponse,
    GetSubscribersRequest, GetSubscribersResponse, GetTagRequest, GetTagResponse, ListTagsRequest,
    ListTagsResponse, ResolveTagRequest, ResolveTagResponse, SetTagRequest, SetTagResponse, SubscribeRequest,
    SubscribeResponse, Subscription, TagMapping, UnsubscribeRequest, UnsubscribeResponse,
};

/// A long list of tags is one message.
const MESSAGE_MAX: usize = 512 * 1024 * 1024;

pub(super) fn service(tags: Tags) -> TagServiceServer<Today> {
    TagServiceServer::new(Today(tags)).max_encoding_message_size(MESSAGE_MAX)
}

pub(super) struct Today(Tags);

impl From<Mapping> for TagMapping {
    fn from(mapping: Mapping) -> Self {
        let Mapping { name, child_tags, uri, ip } = mapping.with_both_halves();
        Self { name, child_tags, uri, ip }
    }
}

impl From<TagMapping> for Mapping {
    fn from(TagMapping { name, child_tags, uri, ip }: TagMapping) -> Self {
        Self { name, child_tags, uri, ip }.without_empty_halves()
    }
}

fn subscription(given: Option<Subscription>) -> Result<Subscription, Error> {
    given.ok_or_else(|| Error::invalid("subscription", "is missing"))
}

#[tonic::async_trait]
impl TagService for Today {
    async fn set_tag(&self, request: Request<SetTagRequest>) -> Result<Response<SetTagResponse>, Status> {
        let tag = request.into_inner().tag.ok_or_else(|| Error::invalid("tag", "is missing"))?;
        self.0.tell(self.0.set(&tag.into()).await?);
        Ok(Response::new(SetTagResponse {}))
    }

    /// An unknown tag is an empty group on this wire.
    async fn get_tag(&self, request: Request<GetTagRequest>) -> Result<Response<GetTagResponse>, Status> {
        let name = request.into_inner().tag_name;
        let tag = self.0.get(&name).unwrap_or_else(|| Mapping { name, ..Mapping::default() });
        Ok(Response::new(GetTagResponse { tag: Some(tag.into()) }))
    }

    async fn resolve_tag(
        &self,
        request: Request<ResolveTagRequest>,
    ) -> Result<Response<ResolveTagResponse>, Status> {
        let tags = self.0.resolve(&request.into_inner().tag_name).into_iter().map(Into::into).collect();
        Ok(Response::new(ResolveTagResponse { tags }))
    }

    async fn list_tags(&self, _: Request<ListTagsRequest>) -> Result<Response<ListTagsResponse>, Status> {
        let tags = self.0.list().into_iter().map(Into::into).collect();
        Ok(Response::new(ListTagsResponse { tags }))
    }

    async fn delete_tag_member(
        &self,
        request: Request<DeleteTagMemberRequest>,
    ) -> Result<Response<DeleteTagMemberResponse>, Status> {
        let DeleteTagMemberRequest { parent_tag, child_tag } = request.into_inner();
        self.0.tell(self.0.delete_member(&parent_tag, &child_tag).await?);
        Ok(Response::new(DeleteTagMemberResponse {}))
    }

    async fn delete_tag(
        &self,
        request: Request<DeleteTagRequest>,
    ) -> Result<Response<DeleteTagResponse>, Status> {
        self.0.tell(self.0.delete(&request.into_inner().tag_name).await?);
        Ok(Response::new(DeleteTagResponse {}))
    }

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<SubscribeResponse>, Status> {
        let Subscription { tag_name, subscriber } = subscription(request.into_inner().subscription)?;
        self.0.subscribe(&tag_name, &subscriber).await?;
        Ok(Response::new(SubscribeResponse {}))
    }

    async fn unsubscribe(
        &self,
        request: Request<UnsubscribeRequest>,
    ) -> Result<Response<UnsubscribeResponse>, Status> {
        let Subscription { tag_name, subscriber } = subscription(request.into_inner().subscription)?;
        self.0.unsubscribe(&tag_name, &subscriber).await?;
        Ok(Response::new(UnsubscribeResponse {}))
    }

    async fn get_subscribers(
        &self,
        request: Request<GetSubscribersRequest>,
    ) -> Result<Response<GetSubscribersResponse>, Status> {
        let subscribers = self.0.subscribers(&request.into_inner().tag_name);
        Ok(Response::new(GetSubscribersResponse { subscribers }))
    }
}
