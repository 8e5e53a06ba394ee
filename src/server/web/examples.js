// What the empty page offers.

const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the current weather in a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, unit: { type: "string" } },
      required: ["city"],
    },
  },
};

export const EXAMPLES = [
  {
    text:
      "Tom has 32 feathers. Jack has twice as many feathers as Tom. Emily has 22 more feathers than Jack. " +
      "What is the number of feathers that Emily has?",
  },
  {
    text:
      "Alice can make 9 toys in one hour. Arthur can make 10 toys in one hour. Both work for 5 hours. " +
      "How many toys do they make in all?",
  },
  { text: "What is the weather in Paris?", tools: [WEATHER], note: "with a tool" },
];
