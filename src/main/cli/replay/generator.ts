// The built-in trace: a seeded stream of conversations with several turns and shared system prompts.
import { seededRandom, type RandomSource } from './random.js';
import { TOKENS_PER_BLOCK, type TraceRecord } from './trace.js';

/** Requests of a replay without `--trace` and without `--requests`: well under a minute at the default block size. */
export const DEFAULT_GENERATED_REQUESTS = 1200;

/** Conversations that are open at the same time; each finished one is replaced by a new one. */
const OPEN_CONVERSATIONS = 64;

/** Applications, each with one system prompt shared by all of its conversations; the first is used most. */
const SYSTEM_PROMPTS = 8;

const SYSTEM_PROMPT_TOKENS = { min: 1024, max: 6144 };
const TURNS = { min: 2, max: 12 };
const USER_MESSAGE_TOKENS = { min: 60, max: 1800 };
const ANSWER_TOKENS = { min: 40, max: 700 };
const MEAN_GAP_MS = 150;

interface Conversation {
  turnsLeft: number;
  /** Tokens of everything said so far, system prompt and answers included. */
  tokens: number;
  /** Ids of the complete blocks of those tokens, as far as a request has named them. */
  readonly ids: number[];
}

interface SystemPrompt {
  readonly tokens: number;
  readonly ids: readonly number[];
}

/**
 * An endless trace in the form of trace files. A request repeats its conversation so far, so its leading ids are those
 * of the turn before; the id of a partial last block is used once, since the next turn completes that block.
 */
export function* generateTrace(seed: number): Generator<TraceRecord, never, undefined> {
  const random = seededRandom(seed);
  let nextId = 0;
  const newId = (): number => nextId++;
  const prompts: SystemPrompt[] = Array.from({ length: SYSTEM_PROMPTS }, () => {
    const tokens = between(random, SYSTEM_PROMPT_TOKENS);
    return { tokens, ids: Array.from({ length: Math.floor(tokens / TOKENS_PER_BLOCK) }, newId) };
  });
  const conversations: Conversation[] = Array.from({ length: OPEN_CONVERSATIONS }, () =>
    openConversation(random, prompts),
  );

  let timestamp = 0;
  while (true) {
    const place = random.integer(conversations.length);
    const conversation = conversations[place];
    const inputLength = conversation.tokens + between(random, USER_MESSAGE_TOKENS);
    const outputLength = between(random, ANSWER_TOKENS);
    while (conversation.ids.length < Math.floor(inputLength / TOKENS_PER_BLOCK)) {
      conversation.ids.push(newId());
    }
    const partial = inputLength % TOKENS_PER_BLOCK === 0 ? [] : [newId()];
    yield { timestamp, inputLength, outputLength, hashIds: [...conversation.ids, ...partial] };

    conversation.tokens = inputLength + outputLength;
    conversation.turnsLeft -= 1;
    if (conversation.turnsLeft === 0) conversations[place] = openConversation(random, prompts);
    timestamp += Math.round(-Math.log(1 - random.next()) * MEAN_GAP_MS);
  }
}

/** System prompts are picked with a strong skew: a few applications make most of the traffic. */
function openConversation(random: RandomSource, prompts: readonly SystemPrompt[]): Conversation {
  const prompt = prompts[Math.floor(random.next() ** 2 * prompts.length)];
  return { turnsLeft: between(random, TURNS), tokens: prompt.tokens, ids: [...prompt.ids] };
}

function between(random: RandomSource, range: { readonly min: number; readonly max: number }): number {
  return range.min + random.integer(range.max - range.min + 1);
}
